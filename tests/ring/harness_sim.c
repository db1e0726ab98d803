/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ring/harness_sim.h"
#include "tests/harness/random.h"
#include <assert.h>
#include <ucontext.h>

#define STACK_SIZE (128U * 1024)

struct sim_process {
    ucontext_t context;
    void (*main)(void *);
    void *userdata;
    const uint64_t *ready; /* waits until this is not 0 */
    char *stack;
    uint32_t speed; /* how often it is chosen, against the others */
    bool ended;
};

struct sim {
    uint64_t state;
    uint64_t steps;
    ucontext_t scheduler;
    struct sim_process processes[SIM_PROCESSES_MAX];
    int n;
    int current;
    bool running;
};

static struct sim *active;

struct sim *sim_new(uint64_t seed)
{
    struct sim *sim = calloc(1, sizeof *sim);
    assert(sim);
    sim->state = seed;
    sim->current = -1;
    return sim;
}

struct sim *sim_free(struct sim *sim)
{
    if (sim)
        for (int i = 0; i < sim->n; i++)
            free(sim->processes[i].stack);
    active = NULL;
    free(sim);
    return NULL;
}

static void enter(void)
{
    struct sim_process *p = &active->processes[active->current];
    p->main(p->userdata);
    p->ended = true;
    swapcontext(&p->context, &active->scheduler);
}

int sim_spawn(struct sim *sim, void (*main)(void *), void *userdata)
{
    assert(sim->n < SIM_PROCESSES_MAX);
    struct sim_process *p = &sim->processes[sim->n];
    p->main = main;
    p->userdata = userdata;
    p->stack = malloc(STACK_SIZE);
    assert(p->stack);
    p->speed = 1U << (dlx_test_splitmix64(&sim->state) % 7);
    getcontext(&p->context);
    p->context.uc_stack.ss_sp = p->stack;
    p->context.uc_stack.ss_size = STACK_SIZE;
    p->context.uc_link = NULL;
    makecontext(&p->context, enter, 0);
    return sim->n++;
}

bool sim_run(struct sim *sim)
{
    bool ok = true;
    active = sim;
    sim->running = true;
    for (;;) {
        /* Now and then another process runs fast, or is preempted for long, wherever it happens to
         * be. */
        if (dlx_test_splitmix64(&sim->state) % 32 == 0)
            sim->processes[dlx_test_splitmix64(&sim->state) % (uint64_t)sim->n].speed =
                1U << (dlx_test_splitmix64(&sim->state) % 10);
        int runnable[SIM_PROCESSES_MAX], n = 0, left = 0;
        uint64_t speed = 0;
        for (int i = 0; i < sim->n; i++) {
            struct sim_process *p = &sim->processes[i];
            if (p->ended)
                continue;
            left++;
            if (!p->ready || *p->ready) {
                runnable[n++] = i;
                speed += p->speed;
            }
        }
        if (n == 0 || sim->steps == SIM_STEPS_MAX) {
            ok = left == 0;
            break;
        }
        uint64_t at = dlx_test_splitmix64(&sim->state) % speed;
        int chosen = 0;
        while (at >= sim->processes[runnable[chosen]].speed)
            at -= sim->processes[runnable[chosen++]].speed;
        sim->current = runnable[chosen];
        sim->processes[sim->current].ready = NULL;
        sim->steps++;
        swapcontext(&sim->scheduler, &sim->processes[sim->current].context);
    }
    sim->running = false;
    return ok;
}

uint32_t sim_random(uint32_t below)
{
    return (uint32_t)(dlx_test_splitmix64(&active->state) % below);
}

void sim_yield(void)
{
    swapcontext(&active->processes[active->current].context, &active->scheduler);
}

void sim_pause(uint32_t least, uint32_t below)
{
    for (uint32_t i = least + sim_random(below); i > 0; i--)
        sim_yield();
}

void sim_wait(const uint64_t *ready)
{
    active->processes[active->current].ready = ready;
    sim_yield();
}

void sim_kill(int i)
{
    active->processes[i].ended = true;
    if (i == active->current)
        sim_yield();
}

bool sim_killed(int i)
{
    return active->processes[i].ended;
}

void dlx_sim_step(const volatile void *word);

void dlx_sim_step(const volatile void *word)
{
    (void)word;
    if (active && active->running)
        sim_yield();
}

static void (*run_one)(uint64_t seed);
static uint64_t n_to_run;

TEST(every_schedule_keeps_the_promises)
{
    const char *one = getenv("SIM_SEED");
    const char *many = getenv("SIM_SEEDS");
    if (one) {
        run_one(strtoull(one, NULL, 0));
        return;
    }
    uint64_t n = many ? strtoull(many, NULL, 0) : n_to_run;
    for (uint64_t seed = 1; seed <= n; seed++)
        run_one(seed * UINT64_C(0x9e3779b97f4a7c15) >> 20);
}

int dlx_test_sim_run(void (*run_seed)(uint64_t seed), uint64_t n_seeds)
{
#if defined(__SANITIZE_THREAD__)
    /* One thread in all, on stacks that the sanitizer does not know. */
    (void)puts("SKIP: a simulation is single-threaded: nothing for thread sanitizer to see");
    return 0;
#endif
    TCase *tcase = tcase_create("schedules");
    tcase_set_timeout(tcase, 300);
    run_one = run_seed;
    n_to_run = n_seeds;
    return dlx_test_run_case(tcase);
}
