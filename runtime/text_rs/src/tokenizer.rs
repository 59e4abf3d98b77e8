//! `text_tokenizer_*`: a tokenizer.json by the `tokenizers` crate.

use tokenizers::Tokenizer;

use crate::ffi::{guarded, new_handle, slice, text, Failure, TextResult};

pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// Tokens `<0xHH>` are bytes, which the decoder joins into characters.
    byte_fallback: bool,
}

const SKIPPED: i32 = 0;
const WHOLE: i32 = 1;
const BYTE: i32 = 2;

fn described(error: tokenizers::Error) -> Failure {
    Failure::Error(error.to_string())
}

fn is_byte_token(token: &str) -> bool {
    token.len() == 6
        && token.starts_with("<0x")
        && token.ends_with('>')
        && u8::from_str_radix(&token[3..5], 16).is_ok()
}

impl TextTokenizer {
    fn new(json: &[u8]) -> Result<Self, Failure> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(described)?;
        // Leftovers of training; transformers switches them off unless asked, too.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(described)?;
        let decoder = serde_json::to_string(&tokenizer.get_decoder())
            .map_err(|error| Failure::Error(error.to_string()))?;
        Ok(TextTokenizer {
            tokenizer,
            byte_fallback: decoder.contains("\"ByteFallback\""),
        })
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u8>, Failure> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(described)?;
        let ids = encoding.get_ids().iter();
        Ok(ids.flat_map(|&id| i64::from(id).to_ne_bytes()).collect())
    }

    fn decode(&self, ids: &[i64]) -> Result<Vec<u8>, Failure> {
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|&id| u32::try_from(id).ok())
            .collect();
        let text = self.tokenizer.decode(&ids, true).map_err(described)?;
        Ok(text.into_bytes())
    }

    fn token_kind(&self, id: i64) -> i32 {
        let token = u32::try_from(id)
            .ok()
            .and_then(|id| self.tokenizer.id_to_token(id));
        let special = |token: &String| {
            self.tokenizer
                .get_added_vocabulary()
                .is_special_token(token)
        };
        match token {
            None => SKIPPED,
            Some(token) if special(&token) => SKIPPED,
            Some(token) if self.byte_fallback && is_byte_token(&token) => BYTE,
            Some(_) => WHOLE,
        }
    }
}

/// # Safety
/// As `text.h` says; so for every function below.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_new(
    json: *const u8,
    size: usize,
    error: *mut TextResult,
) -> *mut TextTokenizer {
    new_handle(error, || TextTokenizer::new(slice(json, size)))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_free(tokenizer: *mut TextTokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_encode(
    tokenizer: &TextTokenizer,
    data: *const u8,
    size: usize,
    add_special_tokens: i32,
) -> TextResult {
    guarded(|| tokenizer.encode(text(data, size)?, add_special_tokens != 0)).into()
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_decode(
    tokenizer: &TextTokenizer,
    ids: *const i64,
    size: usize,
) -> TextResult {
    guarded(|| tokenizer.decode(slice(ids, size))).into()
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_token_to_id(
    tokenizer: &TextTokenizer,
    data: *const u8,
    size: usize,
) -> i64 {
    let id = guarded(|| Ok(tokenizer.tokenizer.token_to_id(text(data, size)?)));
    id.ok().flatten().map_or(-1, i64::from)
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn text_tokenizer_token_kind(tokenizer: &TextTokenizer, id: i64) -> i32 {
    tokenizer.token_kind(id)
}
