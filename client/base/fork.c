/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/fork.h"
#include "client/base/misuse.h"
#include "common/error.h"
#include <pthread.h>
#include <sys/mman.h>

volatile uint64_t *dlx__fork_page;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_generation; /* copied by fork, so a child's next one is new to it */

int dlx__fork_init(uint64_t *ret_generation)
{
    int r = 0;
    pthread_mutex_lock(&lock);
    if (!dlx__fork_page) {
        void *page =
            mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            r = dlx__fail_errno("mmap of a page");
        } else if (madvise(page, DLX_PAGE, MADV_WIPEONFORK) < 0) {
            r = errno == EINVAL
                    ? dlx__fail(DLX_E_KERNEL, "no MADV_WIPEONFORK (Linux 4.14 or newer is needed)")
                    : dlx__fail_errno("MADV_WIPEONFORK");
            munmap(page, DLX_PAGE);
        } else {
            dlx__fork_page = page;
        }
    }
    if (r == 0) {
        if (*dlx__fork_page == 0)
            *dlx__fork_page = ++last_generation;
        *ret_generation = *dlx__fork_page;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

int dlx__refuse_forked(uint64_t generation)
{
    return dlx__forked(generation) ? dlx__fail_forked(generation) : 0;
}

int dlx__fail_forked(uint64_t generation)
{
    pthread_mutex_lock(&lock);
    bool is_parents = generation > 0 && generation <= last_generation;
    pthread_mutex_unlock(&lock);
    dlx__check_released(generation, "a call on a handle or a message");
    if (!is_parents)
        return dlx__fail(DLX_E_INVALID, "this handle is not one that can be used: it was released "
                                        "before (DLX_DEBUG=1 finds where)");
    return dlx__fail(DLX_E_FORKED, "this handle was created before fork() by the parent process: "
                                   "call dlx_connect() in the child");
}
