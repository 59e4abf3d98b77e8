#pragma once

// The C side of the crate. Strings go in as pointer and length (UTF-8, no terminator); what comes
// back is a TextResult, to be released with text_free whatever its status. Handles may be used from
// any number of threads at once. Nothing unwinds through here: a panic in Rust is a kTextError.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum TextStatus {
  kTextOk = 0,
  kTextError = 1,   ///< data is what went wrong
  kTextRaised = 2,  ///< data is what the template gave to raise_exception
};

typedef struct TextResult {
  int32_t status;
  uint8_t* data;
  size_t size;
} TextResult;

void text_free(TextResult result);

typedef struct TextTokenizer TextTokenizer;

enum TextTokenKind {
  kTextTokenSkipped = 0,  ///< special, or outside the vocabulary: decoding leaves it out
  kTextTokenWhole = 1,    ///< text of its own
  kTextTokenByte = 2,     ///< one byte of a byte-fallback run, which is text or not as a whole
};

/// From the content of a tokenizer.json; null, with the reason in `error`, when it cannot be read.
TextTokenizer* text_tokenizer_new(const uint8_t* json, size_t size, TextResult* error);
void text_tokenizer_free(TextTokenizer* tokenizer);
/// data is an array of int64_t ids.
TextResult text_tokenizer_encode(const TextTokenizer* tokenizer,
                                 const uint8_t* text,
                                 size_t size,
                                 int32_t add_special_tokens);
TextResult text_tokenizer_decode(const TextTokenizer* tokenizer, const int64_t* ids, size_t size);
/// -1 when there is no such token.
int64_t text_tokenizer_token_to_id(const TextTokenizer* tokenizer,
                                   const uint8_t* token,
                                   size_t size);
int32_t text_tokenizer_token_kind(const TextTokenizer* tokenizer, int64_t id);

typedef struct TextTemplate TextTemplate;

/// `sources`: JSON object, template by name ("default" and perhaps "tool_use"); `special_tokens`:
/// JSON object of strings. Null, with the reason in `error`, when one does not parse.
TextTemplate* text_template_new(const uint8_t* sources,
                                size_t sources_size,
                                const uint8_t* special_tokens,
                                size_t special_tokens_size,
                                TextResult* error);
void text_template_free(TextTemplate* chat_template);
/// JSON: array of messages; array of tools, or empty; object of variables, or empty.
TextResult text_template_render(const TextTemplate* chat_template,
                                const uint8_t* messages,
                                size_t messages_size,
                                const uint8_t* tools,
                                size_t tools_size,
                                const uint8_t* kwargs,
                                size_t kwargs_size);

#ifdef __cplusplus
}
#endif
