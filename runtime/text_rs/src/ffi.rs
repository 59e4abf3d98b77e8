//! The C boundary: borrowed strings in, one kind of result out, panics caught.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a call gave no answer. `Raised` is a chat template's own refusal.
#[derive(Debug)]
pub enum Failure {
    Error(String),
    Raised(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Failure::Error(message)
    }
}

#[repr(C)]
pub struct TextResult {
    status: i32,
    data: *mut u8,
    size: usize,
}

impl TextResult {
    fn new(status: i32, bytes: Vec<u8>) -> Self {
        let size = bytes.len();
        let data = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
        TextResult { status, data, size }
    }
}

impl From<Result<Vec<u8>, Failure>> for TextResult {
    fn from(outcome: Result<Vec<u8>, Failure>) -> Self {
        match outcome {
            Ok(bytes) => TextResult::new(0, bytes),
            Err(Failure::Error(message)) => TextResult::new(1, message.into_bytes()),
            Err(Failure::Raised(message)) => TextResult::new(2, message.into_bytes()),
        }
    }
}

/// # Safety
/// `result` came from this crate and is freed once.
#[no_mangle]
pub unsafe extern "C" fn text_free(result: TextResult) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
        result.data,
        result.size,
    )));
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    format!(
        "panic in the text library: {}",
        text.unwrap_or_else(|| "no message".into())
    )
}

/// Runs `call`; a panic becomes an error.
pub fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(panic_text(payload).into()))
}

/// Runs `call` on a thread of its own, with that much stack.
pub fn on_stack<T: Send>(
    bytes: usize,
    call: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(bytes)
            .spawn_scoped(scope, call)
            .map_err(|error| Failure::Error(format!("no thread to work on: {error}")))?;
        thread
            .join()
            .unwrap_or_else(|payload| Err(panic_text(payload).into()))
    })
}

/// A new handle, or null with the reason in `error`.
///
/// # Safety
/// `error` can be written to.
pub unsafe fn new_handle<T>(
    error: *mut TextResult,
    make: impl FnOnce() -> Result<T, Failure>,
) -> *mut T {
    match guarded(make) {
        Ok(handle) => Box::into_raw(Box::new(handle)),
        Err(failure) => {
            error.write(Err(failure).into());
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `data` points to `size` elements that outlive the use, or `size` is 0.
pub unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}

/// # Safety
/// As `slice`.
pub unsafe fn text<'a>(data: *const u8, size: usize) -> Result<&'a str, Failure> {
    std::str::from_utf8(slice(data, size))
        .map_err(|error| Failure::Error(format!("text is not UTF-8: {error}")))
}
