/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_STANDIN_MACHINE_H
#define DLX_STANDIN_MACHINE_H

/*
 * The shared part of the processes of one machine: a mapped file. Its fields are changed under the
 * file's lock (flock, which ends with its process), but for the atomic ones.
 *
 * Processes may be in several pid namespaces, where numbers repeat and others are not seen. So each
 * has an id in the machine, and a byte of the file that it has locked (fcntl) until it dies.
 */

#include "tests/gpu/standin/state.h"

#define MAX_PROCESSES 256
#define MAX_EVENTS    4096
#define MAX_SHARES    4096

struct process {
    _Atomic uint64_t id; /* 0: never used */
    _Atomic int pid;     /* in its own namespace */
    uint64_t pid_namespace;
    _Atomic uint64_t counters[STANDIN_N_COUNTERS];
    _Atomic uint64_t contexts_made[MAX_DEVICES];
    _Atomic uint64_t used[MAX_DEVICES];
};

/* Memory that a handle names: of cuIpcGetMemHandle, or a pool's exported pointer. */
struct share {
    uint64_t id;      /* 0: never used */
    uint64_t process; /* id */
    int pid, fd, device;
    uint64_t pid_namespace; /* that the pid is of */
    bool is_freed;
    int n_opens;
    uint64_t offset, size;
    uint64_t pool_id; /* 0: not a pool's */
};

struct event_slot {
    uint64_t id;
    int n_users; /* 0: free */
    struct event_state state;
};

struct machine {
    uint64_t magic;
    int n_devices, n_events;
    uint64_t memory;
    CUuuid uuids[MAX_DEVICES];
    uint64_t last_id;
    struct process processes[MAX_PROCESSES];
    struct share shares[MAX_SHARES];
    struct event_slot events[MAX_EVENTS];
};

extern struct machine *machine;
extern struct process *process; /* this one's */

/* Called by cuInit. false: the file cannot be used. */
bool machine_open(void);
void machine_lock(void);
void machine_unlock(void);
bool process_is_alive(uint64_t id);

void count_add(enum standin_counter counter, int64_t n);
/* Memory of a device: false if there is not so much. */
bool memory_take(int device, size_t size);
void memory_add(int device, size_t size); /* also where there is no room */
void memory_give(int device, size_t size);
uint64_t memory_free_now(int device);

#endif
