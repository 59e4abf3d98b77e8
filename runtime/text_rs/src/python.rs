//! What Python does and minijinja does not: printing values as `str` and `repr`, `strftime`, and
//! filters, tests and string methods beyond those of minijinja-contrib. (`json.dumps`: tojson.rs.)

use std::ffi::CString;
use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{filters, Error, ErrorKind, State, Value};
use unicode_categories::UnicodeCategories;

pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `repr(float)`: shortest digits that read back the same, exponents from 1e16 and below 1e-4.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("Rust writes an exponent");
    let exponent: i32 = exponent.parse().expect("Rust writes a whole exponent");
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn is_printable(c: char) -> bool {
    c == ' ' || !(c.is_other() || c.is_separator())
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let _ = match c as u32 {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

pub fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

pub fn as_float(value: &Value) -> Result<f64, Error> {
    f64::try_from(value.clone())
}

/// Python, too, gives up on values nested about this deep (or that contain themselves).
const MAX_DEPTH: usize = 1000;

pub fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("value is nested too deeply"));
    }
    Ok(())
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if is_float(value) => out.push_str(&float_repr(as_float(value)?)),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() {
                ('(', ")")
            } else {
                ('[', "]")
            };
            out.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push_str(close);
        }
        _ => write!(out, "{value}").map_err(|_| invalid("value cannot be printed"))?,
    }
    Ok(())
}

/// `str(value)`, which is what printing a value in a template gives.
pub fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number if is_float(value) => Ok(float_repr(as_float(value)?)),
        ValueKind::Map | ValueKind::Seq => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
        _ => Ok(value.to_string()),
    }
}

/// `datetime.now().strftime(format)`: the C library's, as in Python, with the fields that Python
/// fills in itself.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_err(|error| invalid(format!("strftime_now: {error}")))?;
    let mut wanted = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        match (c, if c == '%' { rest.next() } else { None }) {
            ('%', Some('f')) => {
                let _ = write!(wanted, "{:06}", since_epoch.subsec_micros());
            }
            ('%', Some('z' | 'Z')) => {} // the time is naive
            ('%', Some(field)) => wanted.extend(['%', field]),
            (c, _) => wanted.push(c),
        }
    }
    let wanted = CString::new(wanted).map_err(|_| invalid("strftime_now: embedded null"))?;
    let mut buffer = vec![0u8; 256 + 32 * wanted.as_bytes().len()];
    let seconds = since_epoch.as_secs() as libc::time_t;
    // SAFETY: the pointers are to live locals, and strftime writes at most buffer.len() bytes.
    let written = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut local);
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            wanted.as_ptr(),
            &local,
        )
    };
    buffer.truncate(written);
    String::from_utf8(buffer).map_err(|_| invalid("strftime_now: not UTF-8"))
}

/// `default` with its arguments by name, too.
pub fn default(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let option = |index: usize, name: &str| match args.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let other = option(0, "default_value")?;
    let also_falsy = option(1, "boolean")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    if value.is_undefined() || (also_falsy && !value.is_true()) {
        return Ok(other.unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

/// `int` gives 0 for what is no number.
pub fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?);
    let default = default.or_else(|| Some(Value::from(0)));
    filters::int(state, value, default, base, kwargs)
}

/// `float` gives 0.0 for what is no number.
pub fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?);
    let default = default.or_else(|| Some(Value::from(0.0)));
    filters::float(state, value, default, kwargs)
}

/// None is not iterable.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What has a length and items: strings and dicts as well.
pub fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// Whether a field of this `str.format` text asks for an absurd width, for which memory would be
/// taken before anything could stop it.
fn has_huge_width(text: &str) -> bool {
    text.split('{').skip(1).any(|field| {
        let spec = field.split('}').next().unwrap_or_default();
        let mut numbers = spec.split(|c: char| !c.is_ascii_digit());
        numbers.any(|digits| digits.len() > 4)
    })
}

/// Methods of Python's values: those of minijinja-contrib, and a few more of `str`.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" | "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            let stripped = match name {
                "removeprefix" => text.strip_prefix(affix),
                _ => text.strip_suffix(affix),
            };
            Ok(Value::from(stripped.unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = match name {
                "partition" => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            Ok(match (found, name) {
                (Some((before, after)), _) => tuple([before, separator, after]),
                (None, "partition") => tuple([text, "", ""]),
                (None, _) => tuple(["", "", text]),
            })
        }
        "format" if has_huge_width(text) => Err(invalid("format: width is too large")),
        "rsplit" => {
            let (separator, limit): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<&str> = match limit {
                Some(limit) => text.rsplitn(limit.saturating_add(1), separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(Value::from_iter(parts))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
}
