//! Hugging Face tokenizers and Jinja chat templates for the C++ node, as `text.h` describes them.

mod chat_template;
mod ffi;
mod python;
mod tojson;
mod tokenizer;
