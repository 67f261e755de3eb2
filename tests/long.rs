//! Whether the suites run at full length. Every crate's tests include this one file by its path.

/// True if `LONGSHORE_LONG` is set to anything but `0` or nothing.
pub(crate) fn long() -> bool {
    is_long(std::env::var_os("LONGSHORE_LONG").as_deref())
}

fn is_long(value: Option<&std::ffi::OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

#[test]
fn unset_empty_and_zero_select_the_short_suites() {
    let is = |text: &str| is_long(Some(text.as_ref()));
    assert!(!is_long(None) && !is("") && !is("0"));
    assert!(is("1") && is("yes"));
}
