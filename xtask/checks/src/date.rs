//! The current day.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current day, UTC, `YYYY-MM-DD`.
pub(crate) fn today() -> String {
    let mut days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    let mut year = 1970;
    while days >= year_length(year) {
        days -= year_length(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_length(year, month) {
        days -= month_length(year, month);
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_length(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: u64, month: u32) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
