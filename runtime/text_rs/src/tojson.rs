//! The `tojson` filter: Python's `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use crate::python::{as_float, check_depth, float_repr, invalid, is_float};

/// The options of `json.dumps` that transformers' `tojson` passes on.
struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl JsonStyle {
    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn number(value: &Value) -> Result<String, Error> {
        if !is_float(value) {
            return Ok(value.to_string());
        }
        Ok(match float_repr(as_float(value)?).as_str() {
            "nan" => "NaN".into(),
            "inf" => "Infinity".into(),
            "-inf" => "-Infinity".into(),
            finite => finite.to_string(),
        })
    }

    fn key(value: &Value) -> Result<String, Error> {
        match value.kind() {
            ValueKind::String => Ok(value.to_string()),
            ValueKind::Number => Self::number(value),
            ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.into()),
            ValueKind::None => Ok("null".into()),
            kind => Err(invalid(format!(
                "tojson: keys must be str, int, float, bool or None, not {kind}"
            ))),
        }
    }

    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&Self::number(value)?),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                out.push('[');
                for (index, item) in value.try_iter()?.enumerate() {
                    self.between(out, index, depth);
                    self.write(out, &item, depth + 1)?;
                }
                self.close(out, value, depth, ']');
            }
            ValueKind::Map => {
                out.push('{');
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((Self::key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                for (index, (key, item)) in entries.iter().enumerate() {
                    self.between(out, index, depth);
                    self.write_string(out, key);
                    out.push_str(&self.key_separator);
                    self.write(out, item, depth + 1)?;
                }
                self.close(out, value, depth, '}');
            }
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn between(&self, out: &mut String, index: usize, depth: usize) {
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.newline(out, depth + 1);
    }

    fn close(&self, out: &mut String, value: &Value, depth: usize, bracket: char) {
        if value.len() != Some(0) {
            self.newline(out, depth);
        }
        out.push(bracket);
    }
}

/// The filter of transformers: `json.dumps`, keeping Unicode and the order of keys.
pub fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = match args.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|value| !value.is_none()))
    };
    let ensure_ascii = option(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = option(1, "indent")?;
    let separators = option(2, "separators")?;
    let sort_keys = option(3, "sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;

    let indent = match indent {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let (item_separator, key_separator) = match separators {
        Some(pair) => match pair.try_iter()?.collect::<Vec<_>>().as_slice() {
            [item, key] => (item.to_string(), key.to_string()),
            _ => return Err(invalid("tojson: separators must be a pair")),
        },
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}
