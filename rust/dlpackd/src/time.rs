// SPDX-License-Identifier: Apache-2.0
//! Times of libdlx: nanoseconds, negative without a limit.

use std::time::Duration;

use dlpackd_sys as sys;

/// Waits without a limit, as any time of more than 292 years does.
pub const FOREVER: Duration = Duration::MAX;

pub(crate) fn to_ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(sys::DLX_FOREVER)
}

/// The same for a time whose absence, 0 in C, selects the default of libdlx.
pub(crate) fn to_ns_or_default(time: Option<Duration>) -> i64 {
    time.map_or(0, |time| to_ns(time.max(Duration::from_nanos(1))))
}

/// Reads the value of an option as dlxctl does: a number of seconds, or with one of the units ns,
/// us, ms, s, min, h and d. Fails with words that follow the name of the option.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 8] = [
        ("", 1e9),
        ("ns", 1.0),
        ("us", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("min", 60e9),
        ("h", 3600e9),
        ("d", 86_400e9),
    ];
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(unit, _)| *unit == &text[number.len()..]);
    let number = if number == text { number } else { number.trim_end_matches(' ') };
    let ns = unit
        .filter(|_| number.starts_with(|c: char| c == '.' || c.is_ascii_digit()))
        .and_then(|(_, factor)| Some(number.parse::<f64>().ok()? * factor))
        .filter(|&ns| ns <= 1e18)
        .ok_or("not a time from 0 to 1000000000 seconds, like 2, 0.5, 100ms or 5min")?;
    match (ns + 0.5) as u64 {
        0 => Err("must be more than 0".into()),
        ns => Ok(Duration::from_nanos(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_dlxctl() {
        for (text, ns) in [
            ("2", 2_000_000_000),
            ("0.25", 250_000_000),
            ("1e-3", 1_000_000),
            ("7ns", 7),
            ("1.5us", 1500),
            ("100ms", 100_000_000),
            ("100 ms", 100_000_000),
            ("3s", 3_000_000_000),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
            ("1e9", 1_000_000_000_000_000_000),
            (".5s", 500_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in [
            "", "-1", "inf", "nan", "0x1p3", "0X1", "1.2.3", "2e9", " 1", "1 ", "ms", "1m", "1S",
            "s1", "1e400", "1sec", "+1", "1ms2", "1,5", "11575d", "0", "0.1ns", "1\u{b5}s",
        ] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }
}
