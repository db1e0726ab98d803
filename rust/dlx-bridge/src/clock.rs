// SPDX-License-Identifier: Apache-2.0
//! Times that mean something on another machine.

fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call, which cannot fail for these clocks.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn realtime_ns() -> u64 {
    now(libc::CLOCK_REALTIME)
}

/// What CLOCK_REALTIME showed at a time of CLOCK_MONOTONIC.
pub fn realtime_of(monotonic_ns: u64) -> u64 {
    realtime_ns().saturating_sub(now(libc::CLOCK_MONOTONIC).saturating_sub(monotonic_ns))
}

/// The other way round. A time that the clock here has not reached yet is now: clocks of two
/// machines differ.
pub fn monotonic_of(realtime_ns: u64) -> u64 {
    let age = now(libc::CLOCK_REALTIME).saturating_sub(realtime_ns);
    now(libc::CLOCK_MONOTONIC).saturating_sub(age).max(1)
}
