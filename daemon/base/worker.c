/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/worker.h"
#include "common/error.h"
#include "common/packet.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <uv.h>

#define STACK_SIZE ((size_t)1 << 20)  /* as much as sanitizers need; little of it is touched */
#define GUARD_SIZE ((size_t)64 << 10) /* at least a page, of any page size */
/* How many jobs are finished in one turn of the loop, and how long, so that other work gets its
 * turn. */
#define DONE_MOST 64
#define DONE_NS   UINT64_C(250000)
/* How long the daemon waits at its end for running jobs. */
#define PATIENCE_NS UINT64_C(1000000000)

/* The jobs of one user, or the descriptors that are closed for it. Exists while there are any. */
struct queue {
    struct dlxd_list node; /* in workers->queues */
    const struct dlxd_user *whose;
    bool is_closing;
    size_t n_jobs; /* including the running one and those not yet reported */

    /* Protected by the lock: */
    struct dlxd_list jobs;  /* waiting */
    struct dlxd_list ready; /* in workers->ready if jobs wait and none runs */
    bool running;
};

struct job {
    struct dlxd_list node; /* in queue->jobs, then in workers->running, then in workers->done */
    struct queue *queue;
    uint64_t began_ns;
    dlxd_job_fn *run;  /* NULL: closes `fd` */
    dlxd_job_fn *done; /* NULL: nothing to report */
    void *data;
    int fd;
};

struct thread {
    pthread_t id;
    void *stack;
};

struct dlxd_workers {
    /* Used by the loop's thread only: */
    uv_async_t async;
    struct dlxd_list queues;
    size_t n_jobs;
    struct thread threads[DLXD_WORKERS_MAX];
    size_t n_threads;
    bool complained;
    bool abandoned; /* a thread may use this struct until the process ends */

    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t change;
    pthread_cond_t drained;
    struct dlxd_list ready;
    struct dlxd_list running; /* in the order of their start */
    struct dlxd_list done;
    size_t n_ready;
    size_t n_idle; /* threads that wait for a job */
    size_t n_running;
    size_t n_telling; /* threads that are waking the loop */
    bool stop;
};

/* ---- threads: all but jobs themselves with the lock ------------------------------------------ */

static void make_ready(struct dlxd_workers *workers, struct queue *queue)
{
    dlxd_list_push_back(&workers->ready, &queue->ready);
    workers->n_ready++;
}

/* Takes a job of the user whose turn it is. */
static struct job *take_job(struct dlxd_workers *workers)
{
    struct queue *queue = dlxd_container_of(workers->ready.next, struct queue, ready);
    struct job *job = dlxd_container_of(queue->jobs.next, struct job, node);
    dlxd_list_remove(&queue->ready);
    workers->n_ready--;
    dlxd_list_remove(&job->node);
    dlxd_list_push_back(&workers->running, &job->node);
    job->began_ns = dlx__now_ns();
    queue->running = true;
    workers->n_running++;
    return job;
}

/* Returns true if the thread must wake the loop. */
static bool give_job_back(struct dlxd_workers *workers, struct job *job)
{
    struct queue *queue = job->queue;
    queue->running = false;
    workers->n_running--;
    if (!dlxd_list_empty(&queue->jobs))
        make_ready(workers, queue);
    bool first = dlxd_list_empty(&workers->done);
    dlxd_list_remove(&job->node);
    dlxd_list_push_back(&workers->done, &job->node);
    return first && !workers->stop;
}

static struct job *wait_for_job(struct dlxd_workers *workers)
{
    workers->n_idle++;
    while (workers->n_ready == 0 && !workers->stop)
        (void)pthread_cond_wait(&workers->change, &workers->lock);
    workers->n_idle--;
    return workers->n_ready > 0 ? take_job(workers) : NULL;
}

static void *work(void *userdata)
{
    struct dlxd_workers *workers = userdata;
    struct job *job;
    (void)pthread_mutex_lock(&workers->lock);
    while ((job = wait_for_job(workers))) {
        (void)pthread_mutex_unlock(&workers->lock);
        if (job->run)
            job->run(job->data);
        else
            dlx__close(job->fd);
        (void)pthread_mutex_lock(&workers->lock);
        if (give_job_back(workers, job)) {
            /* Without the lock, which the loop takes first. */
            workers->n_telling++;
            (void)pthread_mutex_unlock(&workers->lock);
            (void)uv_async_send(&workers->async);
            (void)pthread_mutex_lock(&workers->lock);
            workers->n_telling--;
        }
        if (workers->stop)
            (void)pthread_cond_signal(&workers->drained);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Makes a stack of our own. The C library would keep the stack and the memory of a thread that has
 * ended. */
static int make_stack(void **ret)
{
    void *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return errno;
    if (mprotect(stack, GUARD_SIZE, PROT_NONE) < 0) {
        int error = errno;
        munmap(stack, STACK_SIZE);
        return error;
    }
    *ret = stack;
    return 0;
}

/* Starts one more thread. It blocks signals, which are for the loop's thread. */
static int start_thread(struct dlxd_workers *workers)
{
    struct thread *thread = &workers->threads[workers->n_threads];
    pthread_attr_t attributes;
    sigset_t all, before;
    int error = make_stack(&thread->stack);
    if (error)
        return error;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstack(&attributes, (char *)thread->stack + GUARD_SIZE,
                                STACK_SIZE - GUARD_SIZE);
    error = pthread_create(&thread->id, &attributes, work, workers);
    (void)pthread_attr_destroy(&attributes);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        munmap(thread->stack, STACK_SIZE);
    else
        workers->n_threads++;
    return error;
}

static void join_thread(const struct thread *thread)
{
    (void)pthread_join(thread->id, NULL);
    munmap(thread->stack, STACK_SIZE);
}

/* Ensures a thread for each user with work, up to the maximum. If no thread can be started, the
 * existing threads do the work. */
static int provide_threads(struct dlxd_workers *workers)
{
    size_t n_free = workers->n_idle + workers->n_telling;
    if (workers->n_ready <= n_free || workers->n_threads == DLXD_WORKERS_MAX)
        return 0;
    int error = start_thread(workers);
    if (error && !workers->complained)
        dlxd_log(DLXD_LOG_WARNING, "no thread for work that takes long: %s", strerror(error));
    workers->complained = error != 0;
    if (error && workers->n_threads == 0)
        return dlx__fail(DLX_E_SYSTEM, "dlpackd cannot start a thread (RLIMIT_NPROC, TasksMax): %s",
                         strerror(error));
    return 0;
}

/* ---- life ----------------------------------------------------------------------------------- */

static struct queue *get_queue(struct dlxd_workers *workers, const struct dlxd_user *whose,
                               bool is_closing)
{
    dlx_for_each (it, &workers->queues) {
        struct queue *queue = dlxd_container_of(it, struct queue, node);
        if (queue->whose == whose && queue->is_closing == is_closing)
            return queue;
    }
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->whose = whose;
    queue->is_closing = is_closing;
    dlxd_list_init(&queue->jobs);
    dlxd_list_init(&queue->ready);
    dlxd_list_push_back(&workers->queues, &queue->node);
    return queue;
}

static void put_queue(struct queue *queue)
{
    if (queue->n_jobs > 0)
        return;
    dlxd_list_remove(&queue->node);
    free(queue);
}

static void worker_finish(struct dlxd_workers *workers, struct job *job)
{
    struct queue *queue = job->queue;
    dlxd_job_fn *done = job->done;
    void *data = job->data;
    queue->n_jobs--;
    put_queue(queue);
    workers->n_jobs--;
    free(job);
    if (done)
        done(data);
}

static struct job *next_done(struct dlxd_workers *workers)
{
    struct job *job = NULL;
    (void)pthread_mutex_lock(&workers->lock);
    if (!dlxd_list_empty(&workers->done)) {
        job = dlxd_container_of(workers->done.next, struct job, node);
        dlxd_list_remove(&job->node);
    }
    (void)pthread_mutex_unlock(&workers->lock);
    return job;
}

static void on_async(uv_async_t *async)
{
    struct dlxd_workers *workers = async->data;
    uint64_t until = dlx__now_ns() + DONE_NS;
    struct job *job;
    for (int i = 0; i < DONE_MOST && dlx__now_ns() < until && (job = next_done(workers)); i++)
        worker_finish(workers, job);
    (void)pthread_mutex_lock(&workers->lock);
    if (!dlxd_list_empty(&workers->done))
        (void)uv_async_send(async);
    (void)pthread_mutex_unlock(&workers->lock);
}

int dlxd_workers_new(struct dlxd_workers **ret, struct uv_loop_s *loop)
{
    pthread_condattr_t attributes;
    struct dlxd_workers *workers = calloc(1, sizeof *workers);
    if (!workers)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for jobs beside the loop");
    int r = uv_async_init(loop, &workers->async, on_async);
    if (r < 0) {
        free(workers);
        return dlx__fail(dlx__error_from_errno(-r), "jobs beside the loop: %s", uv_strerror(r));
    }
    workers->async.data = workers;
    dlxd_list_init(&workers->queues);
    dlxd_list_init(&workers->ready);
    dlxd_list_init(&workers->running);
    dlxd_list_init(&workers->done);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&workers->lock, NULL);
    (void)pthread_cond_init(&workers->change, NULL);
    (void)pthread_cond_init(&workers->drained, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *ret = workers;
    return 0;
}

/* Returns false if a job has not ended in time. */
static bool drain(struct dlxd_workers *workers)
{
    uint64_t end = dlx__now_ns() + PATIENCE_NS;
    const struct timespec until = {.tv_sec = (time_t)(end / 1000000000),
                                   .tv_nsec = (long)(end % 1000000000)};
    int error = 0;
    (void)pthread_mutex_lock(&workers->lock);
    workers->stop = true;
    (void)pthread_cond_broadcast(&workers->change);
    while (error == 0 && workers->n_running + workers->n_ready > 0)
        /* lint-allow: clock: it waits by CLOCK_MONOTONIC */
        error = pthread_cond_timedwait(&workers->drained, &workers->lock, &until);
    while (workers->n_telling > 0) /* this does not take long */
        (void)pthread_cond_wait(&workers->drained, &workers->lock);
    (void)pthread_mutex_unlock(&workers->lock);
    return error == 0;
}

static void worker_on_close(uv_handle_t *handle)
{
    struct dlxd_workers *workers = handle->data;
    if (workers->abandoned)
        return;
    (void)pthread_cond_destroy(&workers->drained);
    (void)pthread_cond_destroy(&workers->change);
    (void)pthread_mutex_destroy(&workers->lock);
    free(workers);
}

struct dlxd_workers *dlxd_workers_free(struct dlxd_workers *workers)
{
    struct job *job;
    if (!workers)
        return NULL;
    workers->abandoned = !drain(workers);
    for (size_t i = 0; i < workers->n_threads; i++)
        if (workers->abandoned)
            (void)pthread_detach(workers->threads[i].id); /* its stack stays until the end */
        else
            join_thread(&workers->threads[i]);
    while ((job = next_done(workers)))
        worker_finish(workers, job);
    uv_close((uv_handle_t *)&workers->async, worker_on_close);
    return NULL;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static int submit(struct dlxd_workers *workers, const struct dlxd_user *whose,
                  const struct job *what)
{
    struct queue *queue = get_queue(workers, whose, !what->run);
    if (!queue)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a job beside the loop");
    struct job *job = malloc(sizeof *job);
    if (!job) {
        put_queue(queue);
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a job beside the loop");
    }
    *job = *what;
    job->queue = queue;
    (void)pthread_mutex_lock(&workers->lock);
    dlxd_list_push_back(&queue->jobs, &job->node);
    bool is_due = !queue->running && !dlxd_list_linked(&queue->ready);
    if (is_due)
        make_ready(workers, queue);
    int r = is_due ? provide_threads(workers) : 0;
    if (r < 0) { /* there is no thread, so no other job is waiting */
        dlxd_list_remove(&take_job(workers)->node);
        queue->running = false;
        workers->n_running--;
    }
    (void)pthread_mutex_unlock(&workers->lock);
    if (is_due)
        (void)pthread_cond_signal(&workers->change);
    if (r < 0) {
        free(job);
        put_queue(queue);
        return r;
    }
    queue->n_jobs++;
    workers->n_jobs++;
    return 0;
}

int dlxd_workers_run(struct dlxd_workers *workers, const struct dlxd_user *whose, dlxd_job_fn *run,
                     dlxd_job_fn *done, void *data)
{
    assert(!workers->stop);
    return submit(workers, whose, &(struct job){.run = run, .done = done, .data = data, .fd = -1});
}

int dlxd_workers_close(struct dlxd_workers *workers, const struct dlxd_user *whose, int fd)
{
    /* After the stop, closing may block: nobody is served any more. */
    if (fd < 0 || workers->stop || submit(workers, whose, &(struct job){.fd = fd}) < 0)
        return dlx__close(fd);
    return -1;
}

int dlxd_workers_close_socket(struct dlxd_workers *workers, const struct dlxd_user *whose, int fd)
{
    if (fd < 0 || dlx__packet_refuses_fds(fd))
        return dlx__close(fd);
    return dlxd_workers_close(workers, whose, fd);
}

size_t dlxd_workers_n_jobs(const struct dlxd_workers *workers)
{
    return workers->n_jobs;
}

uint64_t dlxd_workers_longest_ns(struct dlxd_workers *workers)
{
    uint64_t longest = 0;
    (void)pthread_mutex_lock(&workers->lock);
    if (!dlxd_list_empty(&workers->running))
        longest = dlx__now_ns() -
                  dlxd_container_of(workers->running.next, struct job, node)->began_ns + 1;
    (void)pthread_mutex_unlock(&workers->lock);
    return longest;
}
