/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/words.h"
#include "client/control/call.h"
#include "common/packet.h"
#include "gpu/gpu.h"
#include "gpu/lib/idle.h"
#include "keeper/wire.h"
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* What the manifest says is a value whose low bits are the number of the word. */
#define N_WORDS    (DLX_PAGE / sizeof(dlx_atomic_u32))
#define STEP       ((uint32_t)N_WORDS)
#define INDEX_MASK (STEP - 1)
_Static_assert(DLX_GPU_WORDS_OFFERED == STEP, "a value without a word");
/* Pages that one publisher has at most. Further readers get none. */
#define PAGES_MAX 64U
/* After so many messages a publisher looks which readers have gone. */
#define LOOK_EVERY 64U

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A page in this process, which the driver knows. */
struct page {
    struct dlx_gpu_idle idle; /* the first member */
    dlx_atomic_u32 *words;
    uint64_t at;
    DLDevice device;
};

/* ---- pages ----------------------------------------------------------------------------------- */

/* The driver's calls failed half way: the page stays mapped, since it may be registered. */
static struct page *page_open(int fd, DLDevice device)
{
    struct page *page = calloc(1, sizeof *page);
    if (!page)
        return NULL;
    page->device = device;
    void *map = mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED && dlx__gpu_retain((int32_t)device.device_type, device.device_id) == 0) {
        page->words = map;
        if (dlx__gpu_page_add((int32_t)device.device_type, device.device_id, map, &page->at) == 0)
            return page;
        dlx__gpu_release((int32_t)device.device_type, device.device_id);
    } else if (map != MAP_FAILED) {
        (void)munmap(map, DLX_PAGE);
    }
    free(page);
    dlx__error_clear();
    return NULL;
}

static void page_unmap(struct dlx_gpu_idle *idle, int result)
{
    struct page *page = (struct page *)(void *)idle;
    const int32_t type = (int32_t)page->device.device_type, device = page->device.device_id;
    (void)result;
    if (dlx__gpu_unpin(type, device, page->words) == 0)
        (void)munmap(page->words, DLX_PAGE);
    dlx__gpu_release(type, device);
    dlx__error_clear();
    free(page);
}

/* Streams may still write or read it, and to unregister it may wait for them. Without a thread it
 * stays. */
static void page_close(struct page *page)
{
    if (!page)
        return;
    const struct dlx_gpu_work work =
        dlx__gpu_work_now((int32_t)page->device.device_type, page->device.device_id);
    (void)dlx__gpu_when_idle(&page->idle, &work, page_unmap);
    dlx__error_clear();
}

/* ---- publisher ------------------------------------------------------------------------------- */

struct asked {
    struct asked *next;
    int sock;
};

struct dlx_gpu_words {
    DLDevice device;
    pthread_mutex_t lock; /* for `asked` */
    struct asked *_Atomic asked;
    uint32_t n_pages;
    struct page *pages[PAGES_MAX];
    struct pollfd readers[PAGES_MAX]; /* their sockets, which they keep while they have the page */
    uint32_t n_writes;
    uint32_t last;            /* the word that was taken last */
    uint32_t values[N_WORDS]; /* that each word has, or will have */
    atomic_bool is_busy[N_WORDS];
};

bool dlx__gpu_words_are_wanted(void)
{
    const char *text = getenv("DLX_GPU_WORDS");
    return text && strcmp(text, "1") == 0;
}

struct dlx_gpu_words *dlx__gpu_words_new(DLDevice device)
{
    struct dlx_gpu_words *words = calloc(1, sizeof *words);
    if (words) {
        words->device = device;
        (void)pthread_mutex_init(&words->lock, NULL);
    }
    return words;
}

void dlx__gpu_words_ask(struct dlx_gpu_words *words, int sock)
{
    struct asked *asked = malloc(sizeof *asked);
    if (!asked) {
        dlx__close(sock); /* the reader sees that */
        return;
    }
    asked->sock = sock;
    (void)pthread_mutex_lock(&words->lock);
    asked->next = atomic_load_explicit(&words->asked, memory_order_relaxed);
    atomic_store_explicit(&words->asked, asked, memory_order_release);
    (void)pthread_mutex_unlock(&words->lock);
}

static struct asked *take_asked(struct dlx_gpu_words *words)
{
    if (!atomic_load_explicit(&words->asked, memory_order_relaxed))
        return NULL;
    (void)pthread_mutex_lock(&words->lock);
    struct asked *asked = atomic_load_explicit(&words->asked, memory_order_relaxed);
    atomic_store_explicit(&words->asked, NULL, memory_order_relaxed);
    (void)pthread_mutex_unlock(&words->lock);
    return asked;
}

/* A word that will not be written here, since its message was before the page, is below the value
 * of that message. */
static void page_begin(const struct dlx_gpu_words *words, const struct page *page)
{
    for (uint32_t i = 0; i < N_WORDS; i++) {
        bool is_busy = atomic_load_explicit(&words->is_busy[i], memory_order_acquire);
        dlx_store32_relaxed(&page->words[i], words->values[i] - (is_busy ? STEP : 0));
    }
}

static int new_file(void)
{
    int fd = memfd_create("dlx-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, DLX_PAGE) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0))
        fd = dlx__close(fd);
    return fd;
}

static bool send_page(const struct dlx_gpu_words *words, int sock, struct page **ret)
{
    static const uint8_t body[] = {'p', 'a', 'g', 'e'};
    const struct dlx_keeper_packet part = {
        .kind = DLX_KEEPER_PART, .body = body, .body_size = sizeof body};
    dlx_cleanup(dlx__closep) int fd = new_file();
    struct page *page = fd >= 0 ? page_open(fd, words->device) : NULL;
    if (!page)
        return false;
    page_begin(words, page);
    if (dlx__keeper_send(sock, &part, &fd, 1) < 0) {
        page_close(page);
        return false;
    }
    *ret = page;
    return true;
}

/* A reader that gets no page sees its socket closed. */
static void serve_asked(struct dlx_gpu_words *words)
{
    struct asked *next;
    for (struct asked *asked = take_asked(words); asked; asked = next) {
        next = asked->next;
        uint32_t n = words->n_pages;
        if (n < PAGES_MAX && send_page(words, asked->sock, &words->pages[n])) {
            words->readers[n] = (struct pollfd){.fd = asked->sock}; /* POLLHUP alone */
            words->n_pages++;
        } else {
            dlx__close(asked->sock);
        }
        free(asked);
    }
}

static void drop_page(struct dlx_gpu_words *words, uint32_t i)
{
    page_close(words->pages[i]);
    dlx__close(words->readers[i].fd);
    words->n_pages--;
    words->pages[i] = words->pages[words->n_pages];
    words->readers[i] = words->readers[words->n_pages];
}

static void look_at_readers(struct dlx_gpu_words *words)
{
    if (poll(words->readers, words->n_pages, 0) <= 0)
        return;
    for (uint32_t i = words->n_pages; i-- > 0;)
        if (words->readers[i].revents != 0)
            drop_page(words, i);
}

/* Returns 0 if all are taken. */
static uint32_t find_free(const struct dlx_gpu_words *words)
{
    for (uint32_t n = 1; n < N_WORDS; n++) {
        uint32_t i = (words->last + n) & INDEX_MASK;
        if (i != 0 && !atomic_load_explicit(&words->is_busy[i], memory_order_acquire))
            return i;
    }
    return 0;
}

uint32_t dlx__gpu_words_write(struct dlx_gpu_words *words, const struct dlx_gpu_event *event,
                              void *stream, atomic_bool **ret_busy)
{
    struct dlx_gpu_word all[PAGES_MAX];
    uint32_t n_written = 0;
    serve_asked(words);
    if (words->n_pages > 0 && words->n_writes++ % LOOK_EVERY == 0)
        look_at_readers(words);
    uint32_t i = words->n_pages > 0 ? find_free(words) : 0;
    if (i == 0)
        return DLX_GPU_WORDS_OFFERED;
    uint32_t value = words->values[i] + STEP;
    for (uint32_t k = 0; k < words->n_pages; k++)
        all[k] = (struct dlx_gpu_word){.at = words->pages[k]->at + i * sizeof(dlx_atomic_u32),
                                       .value = value};
    int r = dlx__gpu_write_words(event, stream, all, words->n_pages, &n_written);
    if (r < 0)
        dlx__error_clear();
    if (n_written == 0)
        return DLX_GPU_WORDS_OFFERED;
    words->last = i;
    words->values[i] = value;
    atomic_store_explicit(&words->is_busy[i], true, memory_order_relaxed);
    if (r == 0)
        *ret_busy = &words->is_busy[i];
    /* After an error nobody waits for it, and it stays busy. */
    return r < 0 ? DLX_GPU_WORDS_OFFERED : value | i;
}

struct dlx_gpu_words *dlx__gpu_words_end(struct dlx_gpu_words *words)
{
    struct asked *next;
    if (!words)
        return NULL;
    for (struct asked *asked = take_asked(words); asked; asked = next) {
        next = asked->next;
        dlx__close(asked->sock);
        free(asked);
    }
    while (words->n_pages > 0)
        drop_page(words, words->n_pages - 1);
    (void)pthread_mutex_destroy(&words->lock);
    free(words);
    return NULL;
}

/* ---- subscriber ------------------------------------------------------------------------------ */

struct dlx_gpu_words_reader {
    pthread_mutex_t lock;
    enum { READER_NONE, READER_ASKED, READER_OPEN, READER_FAILED } state;
    int sock; /* it tells the publisher that the page is in use */
    struct page *page;
};

struct dlx_gpu_words_reader *dlx__gpu_words_reader_new(void)
{
    struct dlx_gpu_words_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return NULL;
    (void)pthread_mutex_init(&reader->lock, NULL);
    reader->sock = -1;
    return reader;
}

void dlx__gpu_words_reader_free(struct dlx_gpu_words_reader *reader)
{
    if (!reader)
        return;
    page_close(reader->page);
    dlx__close(reader->sock);
    (void)pthread_mutex_destroy(&reader->lock);
    free(reader);
}

static void reader_fail(struct dlx_gpu_words_reader *reader)
{
    reader->sock = dlx__close(reader->sock);
    reader->state = READER_FAILED;
    dlx__error_clear();
}

static void reader_ask(struct dlx_gpu_words_reader *reader, struct dlx_client *c, uint64_t link,
                       uint64_t origin)
{
    struct dlx_new_gpu_memory memory = {.fd = -1};
    int r = dlx__call_gpu_get(c, link, origin, DLX_GPU_WORDS_ID, &memory, &reader->sock);
    dlx__close(memory.fd);
    if (r == 1)
        reader->state = READER_ASKED;
    else
        reader_fail(reader);
}

/* A page that can be shortened would end this process by SIGBUS. */
static bool is_whole(int fd)
{
    struct stat st;
    return (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) && fstat(fd, &st) == 0 &&
           st.st_size == DLX_PAGE;
}

static void reader_receive(struct dlx_gpu_words_reader *reader, DLDevice device)
{
    struct dlx_packet packet;
    struct dlx_keeper_packet part;
    int r = dlx__packet_recv_fds(reader->sock, &packet);
    if (r == DLX_E_EMPTY)
        return;
    bool is_here = r == 0;
    if (r == 0)
        r = dlx__keeper_decode(&packet, &part);
    if (r == 0 && part.kind == DLX_KEEPER_PART && packet.n_fds == 1 && is_whole(packet.fds[0]))
        reader->page = page_open(packet.fds[0], device);
    if (is_here)
        dlx__packet_deinit(&packet);
    if (reader->page)
        reader->state = READER_OPEN;
    else
        reader_fail(reader);
}

bool dlx__gpu_words_find(struct dlx_gpu_words_reader *reader, struct dlx_client *c, uint64_t link,
                         uint64_t origin, DLDevice device, uint32_t said, struct dlx_gpu_word *ret)
{
    uint32_t i = said & INDEX_MASK;
    if (pthread_mutex_trylock(&reader->lock) != 0)
        return false;
    if (reader->state == READER_NONE)
        reader_ask(reader, c, link, origin);
    if (reader->state == READER_ASKED)
        reader_receive(reader, device);
    bool is_open = reader->state == READER_OPEN && i != 0;
    if (is_open)
        *ret = (struct dlx_gpu_word){.word = &reader->page->words[i],
                                     .at = reader->page->at + i * sizeof(dlx_atomic_u32),
                                     .value = said - i};
    (void)pthread_mutex_unlock(&reader->lock);
    return is_open;
}
