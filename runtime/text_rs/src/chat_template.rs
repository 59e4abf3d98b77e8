//! `text_template_*`: chat templates, in the environment that transformers gives them.

use std::borrow::Cow;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::ffi::{guarded, new_handle, on_stack, text, Failure, TextResult};
use crate::python::{self, invalid, to_str};
use crate::tojson::tojson;

/// Templates come with a checkpoint, from anyone; none may end the process. Steps (and per step 64
/// bytes) are limited, to well above what the templates in use need, some of which look at every
/// message for every message. Nesting, in the source and of values that a loop piles up, then fits
/// the stack below, of which only what is used takes memory.
const STEPS: u64 = 3_000_000;
const STEPS_PER_MESSAGE: u64 = 20_000;
const MAX_SOURCE: usize = 1 << 20;
const STACK: usize = 512 << 20;

pub struct TextTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Json>,
}

/// What a template gave to raise_exception, carried through minijinja's error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = to_str(message)?;
    Err(invalid("raise_exception").with_source(Raised(message)))
}

/// As Jinja reads a source: lines end in \n, whatever they ended in.
fn normalized_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks the assistant's text for training and prints its body: `{% with %}`
/// does that, with a scope of its own as well. Whitespace control and line numbers stay.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (start, _) in source.match_indices("{%") {
        let Some(length) = source[start..].find("%}") else {
            break;
        };
        let inside = &source[start + 2..start + length];
        let name = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        let name_start = start + 2 + inside.find(name).unwrap_or(0);
        out.push_str(&source[copied..name_start]);
        out.push_str(replacement);
        copied = name_start + name.len();
    }
    if copied == 0 {
        return source.into();
    }
    out.push_str(&source[copied..]);
    out.into()
}

fn new_environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(|out, _, value| {
        out.write_str(&to_str(value)?)
            .map_err(|_| invalid("output cannot be written"))
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| to_str(value));
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("int", python::int);
    environment.add_filter("float", python::float);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", python::strftime_now);
    Ok(environment)
}

/// "line 3: unknown filter: ..." of the innermost error, or the template's own words.
fn described(error: &Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    let mut innermost = error;
    loop {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Failure::Raised(message.clone());
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            innermost = error;
        }
        match cause.source() {
            Some(source) => cause = source,
            None => break,
        }
    }
    let line = innermost.line().or(error.line()).unwrap_or(0);
    let what = match (innermost.kind(), innermost.detail()) {
        (ErrorKind::OutOfFuel, _) => "rendering takes too many steps".to_string(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    Failure::Error(format!("line {line}: {what}"))
}

fn to_value(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from(items.into_iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(entries) => {
            Value::from_pairs(entries.into_iter().map(|(key, item)| (key, to_value(item))))
        }
    }
}

fn parse(what: &str, json: &str) -> Result<Json, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::Error(format!("{what}: not valid JSON: {error}")))
}

fn parse_object(what: &str, json: &str) -> Result<Map<String, Json>, Failure> {
    match parse(what, json)? {
        Json::Object(entries) => Ok(entries),
        _ => Err(Failure::Error(format!("{what}: expected a JSON object"))),
    }
}

/// As transformers does before it renders: fields that are null are left out, and reasoning goes
/// by each of the names that templates know it by.
fn normalized(message: Json) -> Result<Json, Failure> {
    let Json::Object(fields) = message else {
        return Err(Failure::Error(format!(
            "messages: expected JSON objects, got {message}"
        )));
    };
    let mut fields: Map<String, Json> = fields
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .collect();
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|name| fields.get(*name))
        .cloned();
    if let Some(reasoning) = reasoning {
        fields
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".into(), reasoning);
    }
    Ok(Json::Object(fields))
}

fn parse_messages(json: &str) -> Result<Vec<Json>, Failure> {
    match parse("messages", json)? {
        Json::Array(messages) if !messages.is_empty() => {
            messages.into_iter().map(normalized).collect()
        }
        _ => Err(Failure::Error(
            "messages: expected a JSON array of at least one message".into(),
        )),
    }
}

impl TextTemplate {
    fn new(sources: &str, special_tokens: &str) -> Result<Self, Failure> {
        let mut environment = new_environment().map_err(|error| described(&error))?;
        for (name, source) in parse_object("templates", sources)? {
            let source = normalized_newlines(source.as_str().unwrap_or_default());
            if source.len() > MAX_SOURCE {
                return Err(Failure::Error(format!("longer than {MAX_SOURCE} bytes")));
            }
            environment
                .add_template_owned(name, without_generation_tags(&source).into_owned())
                .map_err(|error| described(&error))?;
        }
        Ok(TextTemplate {
            environment,
            special_tokens: parse_object("special tokens", special_tokens)?,
        })
    }

    fn render(&self, messages: &str, tools: &str, kwargs: &str) -> Result<Vec<u8>, Failure> {
        let mut variables = self.special_tokens.clone();
        variables.insert("documents".into(), Json::Null);
        variables.insert("add_generation_prompt".into(), Json::Bool(true));
        if !kwargs.is_empty() {
            variables.extend(parse_object("chat_template_kwargs", kwargs)?);
        }
        let tools = match tools {
            "" => Json::Null,
            tools => parse("tools", tools)?,
        };
        let messages = parse_messages(messages)?;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(STEPS + STEPS_PER_MESSAGE * messages.len() as u64));
        let named = match environment.get_template("tool_use") {
            Ok(tool_use) if !tools.is_null() => Ok(tool_use),
            _ => environment.get_template("default"),
        };
        variables.insert("messages".into(), Json::Array(messages));
        variables.insert("tools".into(), tools);
        let prompt = named
            .and_then(|chosen| chosen.render(to_value(Json::Object(variables))))
            .map_err(|error| described(&error))?;
        Ok(prompt.into_bytes())
    }
}

/// # Safety
/// As `text.h` says; so for every function below.
#[no_mangle]
pub unsafe extern "C" fn text_template_new(
    sources: *const u8,
    sources_size: usize,
    special_tokens: *const u8,
    special_tokens_size: usize,
    error: *mut TextResult,
) -> *mut TextTemplate {
    new_handle(error, || {
        let sources = text(sources, sources_size)?;
        let special_tokens = text(special_tokens, special_tokens_size)?;
        on_stack(STACK, || TextTemplate::new(sources, special_tokens))
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_template_free(chat_template: *mut TextTemplate) {
    drop(Box::from_raw(chat_template));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_template_render(
    chat_template: &TextTemplate,
    messages: *const u8,
    messages_size: usize,
    tools: *const u8,
    tools_size: usize,
    kwargs: *const u8,
    kwargs_size: usize,
) -> TextResult {
    guarded(|| {
        let messages = text(messages, messages_size)?;
        let tools = text(tools, tools_size)?;
        let kwargs = text(kwargs, kwargs_size)?;
        on_stack(STACK, || chat_template.render(messages, tools, kwargs))
    })
    .into()
}
