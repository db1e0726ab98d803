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
