//! Catches panics of handlers, with the place where they began.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::sync::Once;

use longshore_protocol::JobError;

use crate::work::handler::failure::job_error;

/// The most bytes of a file's name in an error's kind, from its end.
const FILE_BYTES_MAX: usize = 96;

thread_local! {
    /// Counts the calls of [`catch`] on this thread.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// The number of the innermost call that runs. A place belongs to the call with its number, so
    /// a panic that other code caught, or that was resumed, never gets another's place.
    static CALL: Cell<u64> = const { Cell::new(0) };
    static PLACE: RefCell<Option<(u64, String)>> = const { RefCell::new(None) };
}

/// A caught panic. It is also the payload of a panic that is resumed in a handler task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Panicked {
    pub(crate) message: String,
    /// `file:line`; `None` if the program replaced the panic hook.
    pub(crate) place: Option<String>,
}

impl Panicked {
    /// The error of the attempt. Its kind has the place, so panics of two places are two groups of
    /// dead letters.
    pub(crate) fn error(&self) -> JobError {
        match &self.place {
            Some(place) => job_error(&format!("Panic at {place}"), &self.message),
            None => job_error("Panic", &self.message),
        }
    }
}

/// Adds to the panic hook of the program what notes a panic's place. The previous hook still runs.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            note_place(info);
            previous(info);
        }));
    });
}

fn note_place(info: &PanicHookInfo<'_>) {
    let Some(place) = info.location() else { return };
    let file = place.file();
    let cut = file.len().saturating_sub(FILE_BYTES_MAX);
    let from = (cut..=file.len()).find(|&at| file.is_char_boundary(at)).unwrap_or(cut);
    let place = format!("{}:{}", &file[from..], place.line());
    // A panic while the thread ends finds no storage, and has no place.
    let _ = CALL.try_with(|call| {
        PLACE.try_with(|slot| {
            if let Ok(mut slot) = slot.try_borrow_mut() {
                *slot = Some((call.get(), place));
            }
        })
    });
}

/// Runs `run`, and catches its panic.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    let number = CALLS.get().wrapping_add(1);
    CALLS.set(number);
    let outer = CALL.replace(number);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    CALL.set(outer);
    outcome.map_err(|payload| {
        let place = PLACE.take().filter(|(call, _)| *call == number).map(|(_, place)| place);
        match payload.downcast::<Panicked>() {
            Ok(resumed) => *resumed,
            Err(payload) => {
                let message = message_of(&*payload);
                // A payload may panic when it is dropped, and the payload of that panic again.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                    std::mem::forget(again);
                }
                Panicked { message, place }
            }
        }
    })
}

/// Runs `future`, and catches its panic.
pub(crate) async fn catch_async<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(|context| match catch(|| future.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Err(panicked).into(),
    })
    .await
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(run: impl FnOnce()) -> Panicked {
        install_hook();
        catch(run).unwrap_err()
    }

    #[test]
    fn a_panic_has_its_message_and_its_own_place() {
        let line = line!() + 1;
        let one = caught(|| panic!("{} on purpose", 1));
        assert_eq!(one.message, "1 on purpose");
        let place = one.place.clone().unwrap();
        assert!(place.ends_with(&format!("panic.rs:{line}")), "{place}");
        assert_eq!(one.error().kind, format!("Panic at {place}"));
        // Resumed in another task, it is still the same.
        assert_eq!(caught(|| panic::resume_unwind(Box::new(one.clone()))), one);
        let after_another = caught(|| {
            let _ = catch(|| ());
            panic!("after another call")
        });
        assert!(after_another.place.is_some(), "an inner call does not take its place");
        // Without a hook's call, no other panic's place is taken for its own.
        let resumed = caught(|| {
            let _ = catch(|| panic!("somebody else's"));
            panic::resume_unwind(Box::new("x"))
        });
        assert_eq!(resumed, Panicked { message: "x".to_owned(), place: None });
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic::panic_any(Bomb);
        }
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_caught() {
        let panicked = caught(|| panic::panic_any(Bomb));
        assert_eq!(panicked.message, "a panic without a message");
    }
}
