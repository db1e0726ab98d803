// SPDX-License-Identifier: Apache-2.0
//! Two daemons, two bridges, and everything that can go wrong between them.

mod carry;
mod deaths;
#[path = "../../../dlpackd/tests/with_daemon/gpu.rs"]
mod gpu;
mod hostile;
mod hosts;
mod many;
mod numbers;
mod outages;
mod rules;
mod speed;
mod streams;
