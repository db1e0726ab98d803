/* SPDX-License-Identifier: Apache-2.0 */
/* The file that the processes of one machine share: devices, counters, shared memory and events. */
#include "tests/gpu/standin/machine.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x6e69646e61747331)

struct machine *machine;
struct process *process;
static int machine_fd = -1;

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static bool uuid_parse(const char *text, CUuuid *ret)
{
    size_t n = 0;
    if (strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (; n < sizeof ret->bytes; n++) {
        unsigned byte;
        if (*text == '-')
            text++;
        if (sscanf(text, "%2x", &byte) != 1)
            return false;
        ret->bytes[n] = (char)byte;
        text += 2;
    }
    return true;
}

static void machine_make(void)
{
    const char *uuids = getenv("STANDIN_UUIDS");
    machine->n_devices = (int)number_from("STANDIN_DEVICES", 1);
    if (machine->n_devices < 0 || machine->n_devices > MAX_DEVICES)
        machine->n_devices = MAX_DEVICES;
    machine->memory = number_from("STANDIN_MEMORY", UINT64_C(1) << 30);
    machine->n_events = (int)number_from("STANDIN_EVENTS", 64);
    if (machine->n_events > MAX_EVENTS)
        machine->n_events = MAX_EVENTS;
    for (int i = 0; i < machine->n_devices; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "73746e64-696e-4e00-8000-%012x", i + 1);
        if (!uuids || !uuid_parse(uuids, &machine->uuids[i]))
            (void)uuid_parse(text, &machine->uuids[i]);
        uuids = uuids ? strchr(uuids, ',') : NULL;
        uuids = uuids ? uuids + 1 : NULL;
    }
    machine->magic = MAGIC;
}

void machine_lock(void)
{
    while (flock(machine_fd, LOCK_EX) != 0 && errno == EINTR) {
    }
}

void machine_unlock(void)
{
    (void)flock(machine_fd, LOCK_UN);
}

/* Beyond the file's end: flock() has nothing to do with it. A process does not see its own. */
static struct flock lock_of(const struct process *p)
{
    return (struct flock){.l_type = F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)sizeof *machine + (p - machine->processes),
                          .l_len = 1};
}

static bool entry_is_alive(const struct process *p)
{
    struct flock lock = lock_of(p);
    return p == process || (fcntl(machine_fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
}

bool process_is_alive(uint64_t id)
{
    for (struct process *p = machine->processes; p < machine->processes + MAX_PROCESSES; p++)
        if (id != 0 && atomic_load(&p->id) == id)
            return entry_is_alive(p);
    return false;
}

static uint64_t own_pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* An entry of its own for this process, that of a dead one where there is no other. */
static struct process *process_add(void)
{
    struct process *found = NULL;
    for (struct process *p = machine->processes; p < machine->processes + MAX_PROCESSES; p++) {
        if (atomic_load(&p->id) == 0) {
            found = p;
            break;
        }
        if (!found && !entry_is_alive(p))
            found = p;
    }
    if (!found)
        return NULL;
    struct flock lock = lock_of(found);
    if (fcntl(machine_fd, F_SETLK, &lock) != 0)
        return NULL;
    memset(found, 0, sizeof *found);
    found->pid_namespace = own_pid_namespace();
    atomic_store(&found->pid, getpid());
    atomic_store(&found->id, ++machine->last_id);
    return found;
}

bool machine_open(void)
{
    const char *path = getenv("STANDIN_MACHINE");
    struct stat st;
    machine_fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)
                               : memfd_create("standin-machine", MFD_CLOEXEC);
    if (machine_fd < 0)
        return false;
    machine_lock();
    bool ok = fstat(machine_fd, &st) == 0 &&
              (st.st_size != 0 || ftruncate(machine_fd, sizeof *machine) == 0);
    void *map = ok ? mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0)
                   : MAP_FAILED;
    if (map != MAP_FAILED) {
        machine = map;
        if (machine->magic != MAGIC)
            machine_make();
        process = process_add();
    }
    machine_unlock();
    return process != NULL;
}

void count_add(enum standin_counter counter, int64_t n)
{
    if (process)
        atomic_fetch_add(&process->counters[counter], (uint64_t)n);
}

uint64_t standin_count(enum standin_counter counter)
{
    return process ? atomic_load(&process->counters[counter]) : 0;
}

uint64_t standin_count_of(pid_t pid, enum standin_counter counter)
{
    for (struct process *p = machine ? machine->processes : NULL;
         p && p < machine->processes + MAX_PROCESSES; p++)
        if (atomic_load(&p->pid) == pid)
            return atomic_load(&p->counters[counter]);
    return 0;
}

const char *standin_count_name(enum standin_counter counter)
{
    static const char *const names[] = {
#define X(name) #name,
        STANDIN_COUNTERS(X)
#undef X
    };
    return counter < STANDIN_N_COUNTERS ? names[counter] : NULL;
}

uint64_t standin_contexts_made(int device)
{
    return process && device >= 0 && device < MAX_DEVICES
               ? atomic_load(&process->contexts_made[device])
               : 0;
}

static uint64_t memory_used(int index)
{
    uint64_t used = 0;
    for (struct process *p = machine->processes; p < machine->processes + MAX_PROCESSES; p++) {
        if (atomic_load(&p->id) != 0 && entry_is_alive(p))
            used += atomic_load(&p->used[index]);
    }
    return used;
}

uint64_t memory_free_now(int device)
{
    uint64_t used = memory_used(state.visible[device]);
    return used < machine->memory ? machine->memory - used : 0;
}

bool memory_take(int device, size_t size)
{
    machine_lock();
    bool ok = size <= memory_free_now(device);
    if (ok)
        atomic_fetch_add(&process->used[state.visible[device]], size);
    machine_unlock();
    return ok;
}

void memory_add(int device, size_t size)
{
    atomic_fetch_add(&process->used[state.visible[device]], size);
}

void memory_give(int device, size_t size)
{
    atomic_fetch_sub(&process->used[state.visible[device]], size);
}
