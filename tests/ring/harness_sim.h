/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SIM_H
#define DLX_TESTS_HARNESS_SIM_H

/*
 * A deterministic scheduler: processes are coroutines that yield before every access to a shared
 * word (dlx_sim_step() in common/atomic.h, compiled with DLX_SIM), and a seed decides who goes on.
 * The same seed gives the same run. Every access is a step, as in the Spin models: this explores
 * interleavings, not weak memory.
 */

#include "tests/harness/run.h"

#define SIM_PROCESSES_MAX 16
#define SIM_STEPS_MAX     1000000U /* of one run: more is a livelock */

struct sim;

/* A scheduler with a seed. */
struct sim *sim_new(uint64_t seed);
struct sim *sim_free(struct sim *sim);

/* Add a process; returns its index. */
int sim_spawn(struct sim *sim, void (*main)(void *), void *userdata);

/* Run until every process ended or was killed. Returns false on a deadlock (a process waits and
 * none can go on) or a livelock. */
bool sim_run(struct sim *sim);

/* From inside a process: a number below `below`. */
uint32_t sim_random(uint32_t below);

/* From inside a process: let others go on. */
void sim_yield(void);
/* Some times, fewer than `below`; and some more. */
void sim_pause(uint32_t least, uint32_t below);

/* From inside a process: wait until `*ready` is not 0. */
void sim_wait(const uint64_t *ready);

/* From inside a process: never run process `i` again. */
void sim_kill(int i);
bool sim_killed(int i);

/*
 * main() of a simulation: `run_seed` for so many seeds, or SIM_SEEDS=n of them, or SIM_SEED=s
 * alone, in a test of Check. Returns the exit status.
 */
int dlx_test_sim_run(void (*run_seed)(uint64_t seed), uint64_t n_seeds);

#endif
