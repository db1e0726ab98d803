/* SPDX-License-Identifier: Apache-2.0 */

/* The adapter of C: does what tests/conformance/driver says on stdin, with libdlx. README.md has
 * the commands and the answers. It is also the peer of the adapters in other languages. */

#include <dlx/dlx.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind {
    NOTHING,
    CLIENT,
    PUBLISHER,
    SUBSCRIPTION,
    OBSERVER,
    CALLER,
    SERVICE,
    REQUEST,
    MESSAGE,
    TENSOR
};

struct object {
    char name[32];
    enum kind kind;
    void *handle;
    char *events;  /* of publishers, subscriptions and observers: all that came */
    uint64_t call; /* of calls that were begun, which are NOTHING */
};

#define OBJECTS   64
#define ITEMS     128
#define WORDS     512
#define BATCH     64
#define SHOWN_MAX 64 /* bytes of metadata that an answer has in full */

static struct object objects[OBJECTS];
static char *words[WORDS + 1]; /* of the command, without its options */
static int n_words;
static char *options[WORDS];
static int n_options;
static volatile sig_atomic_t has_signal; /* that came during the command */

/* ---- words and objects --------------------------------------------------------------------- */

static const char *text_of(const char *key, const char *otherwise)
{
    size_t size = strlen(key);
    for (int i = 0; i < n_options; i++)
        if (strncmp(options[i], key, size) == 0 && options[i][size] == '=')
            return options[i] + size + 1;
    return otherwise;
}

static uint32_t number_of(const char *key)
{
    return (uint32_t)strtoul(text_of(key, "0"), 0, 10);
}

static int64_t ns(const char *ms)
{
    return strcmp(ms, "forever") == 0 ? DLX_FOREVER : strtoll(ms, NULL, 10) * 1000000;
}

static struct object *find(const char *name)
{
    for (int i = 0; i < OBJECTS; i++)
        if (strcmp(objects[i].name, name) == 0)
            return &objects[i];
    return NULL;
}

static void *get(int i)
{
    struct object *o = n_words > i ? find(words[i]) : NULL;
    if (!o) {
        (void)fprintf(stderr, "adapter: no object is word %d of '%s'\n", i, words[0]);
        exit(2);
    }
    return o->handle;
}

static void release(struct object *o)
{
    DLManagedTensorVersioned *t = o->handle;
    switch (o->kind) {
    case CLIENT:
        dlx_client_unref(o->handle);
        break;
    case PUBLISHER:
        dlx_publisher_unref(o->handle);
        break;
    case SUBSCRIPTION:
        dlx_subscription_unref(o->handle);
        break;
    case OBSERVER:
        dlx_observer_unref(o->handle);
        break;
    case CALLER:
        dlx_caller_unref(o->handle);
        break;
    case SERVICE:
        dlx_service_unref(o->handle);
        break;
    case REQUEST:
        dlx_request_unref(o->handle);
        break;
    case MESSAGE:
        dlx_message_unref(o->handle);
        break;
    case TENSOR:
        if (t->deleter)
            t->deleter(t);
        break;
    default:
        break;
    }
    free(o->events);
    memset(o, 0, sizeof *o);
}

static struct object *put(const char *name, enum kind kind, void *handle)
{
    struct object *o = find(name);
    if (o)
        release(o);
    o = find("");
    if (!o)
        abort();
    (void)snprintf(o->name, sizeof o->name, "%s", name);
    o->kind = kind;
    o->handle = handle;
    return o;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void fail(int code)
{
    const char *text = dlx_errmsg();
    printf("error %s %s", dlx_error_name(code), *text ? text : dlx_strerror(code));
}

/* Nothing came in time, or it failed. */
static void none_or_fail(int code)
{
    if (code == DLX_E_EMPTY || code == DLX_E_TIMEOUT)
        printf("none %s", dlx_errmsg());
    else
        fail(code);
}

static void made(int code, enum kind kind, void *handle)
{
    if (code < 0) {
        fail(code);
        return;
    }
    (void)put(words[1], kind, handle);
    printf("ok");
}

static void done(int code)
{
    if (code < 0)
        fail(code);
    else
        printf("ok");
}

static uint32_t crc_bytes(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size > 0; size--) {
        crc ^= *data++;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return crc;
}

/* Over the elements from dimension `d` on, row-major. */
static uint32_t crc_elements(uint32_t crc, const DLTensor *t, int32_t d, const uint8_t *at)
{
    const size_t size = (size_t)t->dtype.bits * t->dtype.lanes / 8;
    if (d == t->ndim)
        return crc_bytes(crc, at, size);
    for (int64_t i = 0; i < t->shape[d]; i++)
        crc = crc_elements(crc, t, d + 1, at + i * t->strides[d] * (int64_t)size);
    return crc;
}

static size_t n_elements(const DLTensor *t)
{
    size_t n = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        n *= (size_t)t->shape[i];
    return n;
}

static size_t n_bytes(const DLTensor *t)
{
    return (n_elements(t) * t->dtype.bits * t->dtype.lanes + 7) / 8;
}

static void print_numbers(const int64_t *numbers, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        printf("%s%" PRId64, i > 0 ? "," : "", numbers[i]);
    printf(n > 0 ? ":" : "-:");
}

/* DTYPE:SHAPE:STRIDES:CRC */
static void print_tensor(const DLTensor *t)
{
    char dtype[DLX_DTYPE_NAME_SIZE];
    const uint8_t *data = (const uint8_t *)t->data + t->byte_offset;
    (void)dlx_dtype_name(t->dtype, dtype);
    printf("%s:", dtype);
    print_numbers(t->shape, t->ndim);
    print_numbers(t->strides, t->ndim);
    uint32_t crc = t->dtype.bits * t->dtype.lanes % 8 == 0 /* others are packed, in rows */
                       ? crc_elements(0xffffffff, t, 0, data)
                       : crc_bytes(0xffffffff, data, n_bytes(t));
    printf("%08" PRIx32, ~crc);
}

static void print_bytes(const void *data, size_t size)
{
    if (size > SHOWN_MAX)
        printf("%zu:%08" PRIx32, size, ~crc_bytes(0xffffffff, data, size));
    for (size_t i = 0; i < size && size <= SHOWN_MAX; i++)
        printf("%02x", ((const uint8_t *)data)[i]);
    if (size == 0)
        printf("-");
}

static void print_message(const struct dlx_message *m)
{
    size_t size = 0;
    const void *meta = dlx_message_meta(m, &size);
    printf("ok topic=%s seq=%" PRIu64 " gap=%" PRIu64 " attempt=%u meta=", dlx_message_topic(m),
           dlx_message_seq(m), dlx_message_gap(m), dlx_message_attempt(m));
    print_bytes(meta, size);
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        const char *name = dlx_message_tensor_name(m, i);
        printf(" %s:", *name ? name : "-");
        print_tensor(dlx_message_tensor_peek(m, i));
    }
}

static void print_managed(const DLManagedTensorVersioned *t)
{
    printf("ok ");
    print_tensor(&t->dl_tensor);
    printf(" writable=%d", !(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
}

static void fill(const DLTensor *t, unsigned seed)
{
    uint8_t *data = (uint8_t *)t->data + t->byte_offset;
    for (size_t i = 0; i < n_bytes(t); i++)
        data[i] = (uint8_t)(seed + i);
}

/* ---- what is sent -------------------------------------------------------------------------- */

static int32_t parse_shape(char *text, int64_t *ret)
{
    int32_t n = 0;
    if (strcmp(text, "-") == 0)
        return 0;
    for (char *at = text; at && n < DLX_NDIM_MAX + 1; at = strchr(at, ',')) {
        at += *at == ',';
        ret[n++] = strtoll(at, NULL, 10);
    }
    return n;
}

/* Allocates and fills "DTYPE:SHAPE:SEED", or "DTYPE:SHAPE:SEED:T", which is transposed then. */
static int make_tensor(const struct object *owner, char *text, DLManagedTensorVersioned **ret)
{
    char *dtype = strsep(&text, ":"), *shape_text = strsep(&text, ":");
    unsigned seed = (unsigned)strtoul(strsep(&text, ":"), NULL, 10);
    int64_t shape[DLX_NDIM_MAX + 2];
    struct dlx_tensor_spec spec = {.size = sizeof spec, .shape = shape};
    int r = dlx_dtype_parse(dtype, &spec.dtype);
    spec.ndim = parse_shape(shape_text, shape);
    if (r == 0)
        r = owner->kind == CALLER    ? dlx_caller_alloc(owner->handle, &spec, ret)
            : owner->kind == REQUEST ? dlx_request_alloc(owner->handle, &spec, ret)
                                     : dlx_alloc(owner->handle, &spec, ret);
    if (r < 0)
        return r;
    DLTensor *t = &(*ret)->dl_tensor;
    fill(t, seed);
    for (int32_t i = 0; text && i < t->ndim / 2; i++) { /* turn the dimensions round */
        const int32_t k = t->ndim - 1 - i;
        const int64_t size = t->shape[i], stride = t->strides[i];
        t->shape[i] = t->shape[k];
        t->strides[i] = t->strides[k];
        t->shape[k] = size;
        t->strides[k] = stride;
    }
    return 0;
}

/* The items of a command, from word `first` on, and its metadata. */
struct outgoing {
    struct dlx_item items[ITEMS];
    struct object *from[ITEMS]; /* the tensor is an object; NULL: it was made for this command */
    uint32_t n;
    struct dlx_bytes meta;
    uint8_t bytes[DLX_META_MAX + 1];
    struct dlx_publish_args args;
};
static struct outgoing outgoing;

/* "SEED:SIZE", or hexadecimal digits. */
static void read_meta(const char *text)
{
    unsigned seed, size, byte;
    outgoing.meta = (struct dlx_bytes){0};
    if (!text)
        return;
    outgoing.meta.data = outgoing.bytes;
    if (sscanf(text, "%u:%u", &seed, &size) == 2) {
        for (outgoing.meta.size = 0; outgoing.meta.size < size; outgoing.meta.size++)
            outgoing.bytes[outgoing.meta.size] = (uint8_t)(seed + outgoing.meta.size);
        return;
    }
    for (; sscanf(text, "%2x", &byte) == 1; text += 2)
        outgoing.bytes[outgoing.meta.size++] = (uint8_t)byte;
}

static void give_away(bool sent)
{
    for (uint32_t i = 0; i < outgoing.n; i++) {
        DLManagedTensorVersioned *t = outgoing.items[i].tensor;
        if (outgoing.from[i] && sent && !outgoing.args.share)
            memset(outgoing.from[i], 0, sizeof *outgoing.from[i]);
        else if (!outgoing.from[i] && (!sent || outgoing.args.share))
            t->deleter(t);
    }
}

static int read_items(const struct object *owner, int first)
{
    outgoing.n = 0;
    outgoing.args = (struct dlx_publish_args){.size = sizeof outgoing.args,
                                              .timeout_ns = ns(text_of("timeout", "0")),
                                              .strict = number_of("strict"),
                                              .share = number_of("share")};
    read_meta(text_of("meta", NULL));
    for (int i = first; i < n_words; i++) {
        char *name = words[i], *rest = strpbrk(name, ":@");
        struct dlx_item *item = &outgoing.items[outgoing.n];
        const bool is_object = *rest == '@';
        *rest++ = '\0';
        item->name = strcmp(name, "-") == 0 ? NULL : name;
        outgoing.from[outgoing.n] = is_object ? find(rest) : NULL;
        if (is_object)
            item->tensor = outgoing.from[outgoing.n]->handle;
        int r = is_object ? 0 : make_tensor(owner, rest, &item->tensor);
        if (r < 0) {
            fail(r);
            give_away(false);
            return r;
        }
        outgoing.n++;
    }
    return 0;
}

/* ---- commands ------------------------------------------------------------------------------ */

static void do_version(void)
{
    printf("ok %s", dlx_version());
}

static void do_supports(void)
{
    printf("ok");
}

static int is_interrupted(void *userdata)
{
    (void)userdata;
    return has_signal;
}

static void do_connect(void)
{
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {.size = sizeof args,
                                    .socket = text_of("socket", NULL),
                                    .name = text_of("name", NULL),
                                    .timeout_ns = ns(text_of("timeout", "0")),
                                    .wait_ns = ns(text_of("wait", "0")),
                                    .autospawn = DLX_AUTOSPAWN_NEVER};
    args.interrupt = number_of("interrupt") ? is_interrupted : NULL;
    int r = dlx_connect(&args, &c);
    made(r, CLIENT, c);
}

static void do_publisher(void)
{
    struct dlx_publisher *p = NULL;
    const char *on_full = text_of("on_full", ""), *retain_for = text_of("retain_for", "0");
    const char *groups[16];
    char *list = strdup(text_of("groups", "")), *rest = list;
    struct dlx_publisher_args args = {.size = sizeof args,
                                      .history = number_of("history"),
                                      .on_full = *on_full == 'b'   ? DLX_ON_FULL_BLOCK
                                                 : *on_full == 'd' ? DLX_ON_FULL_DROP
                                                                   : DLX_ON_FULL_DEFAULT,
                                      .depth = number_of("depth"),
                                      .retain = number_of("retain"),
                                      .max_held = number_of("max_held"),
                                      .min_subscribers = number_of("require"),
                                      .groups = groups};
    args.retain_for_ns = strcmp(retain_for, "latched") == 0 ? DLX_RETAIN_LATCHED : ns(retain_for);
    for (char *group; *list && (group = strsep(&rest, ",")) && args.n_groups < 16;)
        groups[args.n_groups++] = group;
    int r = dlx_publisher_new(get(2), words[3], &args, &p);
    made(r, PUBLISHER, p);
    free(list);
}

static void do_subscribe(void)
{
    struct dlx_subscription *s = NULL;
    const char *history = text_of("history", "0"), *publishers = text_of("publishers", "0");
    struct dlx_subscribe_args args = {.size = sizeof args,
                                      .mode = number_of("latest") ? DLX_MODE_LATEST : DLX_MODE_ALL,
                                      .history = number_of("history"),
                                      .reliable = number_of("reliable"),
                                      .accepts_unreliable = number_of("accepts_unreliable"),
                                      .max_held = number_of("max_held"),
                                      .n_publishers = number_of("publishers"),
                                      .group = text_of("group", NULL),
                                      .lease_ns = ns(text_of("lease", "0")),
                                      .max_attempts = number_of("max_attempts"),
                                      .dead_letters = text_of("dead_letters", NULL)};
    if (strcmp(history, "none") == 0)
        args.history = DLX_HISTORY_NONE;
    if (strcmp(publishers, "any") == 0)
        args.n_publishers = DLX_PUBLISHERS_ANY;
    int r = dlx_subscribe(get(2), words[3], &args, &s);
    made(r, SUBSCRIPTION, s);
}

static void do_alloc(void)
{
    DLManagedTensorVersioned *t = NULL;
    int r = make_tensor(find(words[2]), words[3], &t);
    made(r, TENSOR, t);
}

static void do_publish(void)
{
    struct dlx_publisher *p = get(1);
    struct dlx_publish_report report = {.size = sizeof report};
    if (read_items(find(words[1]), 2) < 0)
        return;
    const bool plain = outgoing.n == 1 && !outgoing.items[0].name && !outgoing.meta.data;
    int r = plain ? dlx_publish(p, outgoing.items[0].tensor, &outgoing.args, &report)
                  : dlx_publish_set(p, outgoing.items, outgoing.n,
                                    outgoing.meta.data ? &outgoing.meta : NULL, &outgoing.args,
                                    &report);
    if (r < 0)
        fail(r);
    else
        printf("ok seq=%" PRIu64 " copied=%u subscribers=%u", report.seq, report.n_copied,
               report.n_subscribers);
    give_away(r == 0);
}

static void none_or_done(int r)
{
    if (r < 0)
        none_or_fail(r);
    else
        printf("ok");
}

static void do_wait(void)
{
    const struct object *o = find(words[1]);
    none_or_done(o->kind == CALLER
                     ? dlx_caller_wait(o->handle, ns(words[3]))
                     : dlx_publisher_wait(o->handle, (uint32_t)atoi(words[2]), ns(words[3])));
}

static void do_drain(void)
{
    none_or_done(dlx_publisher_drain(get(1), ns(words[2])));
}

static void took(int r, struct dlx_message *m)
{
    if (r < 0) {
        none_or_fail(r);
        return;
    }
    (void)put(words[1], MESSAGE, m);
    print_message(m);
}

static void do_take(void)
{
    struct dlx_message *m = NULL;
    int r = dlx_take(get(2), ns(words[3]), &m);
    took(r, m);
}

static void do_get(void)
{
    struct dlx_message *m = NULL;
    int r = dlx_get(get(2), words[3], ns(words[4]), &m);
    took(r, m);
}

static void do_take_many(void)
{
    struct dlx_message *messages[BATCH];
    uint32_t n = 0;
    int r = dlx_take_n(get(2), (uint32_t)atoi(words[3]), ns(words[4]), messages, &n);
    if (r < 0) {
        none_or_fail(r);
        return;
    }
    printf("ok");
    for (uint32_t i = 0; i < n; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s.%u", words[1], i);
        (void)put(name, MESSAGE, messages[i]);
        printf(" %" PRIu64, dlx_message_seq(messages[i]));
    }
}

/* Takes and releases until the last publisher has left. */
static void do_rest(void)
{
    struct dlx_message *m;
    char line[4096] = "";
    for (;;) {
        int r = dlx_take(get(1), DLX_FOREVER, &m);
        if (r == DLX_E_PUBLISHER_GONE)
            break;
        if (r < 0) {
            fail(r);
            return;
        }
        size_t used = strlen(line);
        (void)snprintf(line + used, sizeof line - used, " %" PRIu64, dlx_message_seq(m));
        dlx_message_unref(m);
    }
    printf("ok%s", line);
}

static struct dlx_message *message(int i)
{
    const struct object *o = find(words[i]);
    return o->kind == REQUEST ? dlx_request_message(o->handle) : get(i);
}

/* "@NAME", or the number of a tensor. */
static int which(const char *word, uint32_t *ret)
{
    if (*word == '@')
        return dlx_message_tensor_find(message(2), word + 1, ret);
    *ret = (uint32_t)strtoul(word, NULL, 10);
    return 0;
}

static void open_tensor(int (*open)(struct dlx_message *, uint32_t, DLManagedTensorVersioned **))
{
    DLManagedTensorVersioned *t = NULL;
    uint32_t i = 0;
    int r = which(words[3], &i);
    if (r == 0)
        r = open(message(2), i, &t);
    if (r < 0) {
        fail(r);
        return;
    }
    (void)put(words[1], TENSOR, t);
    print_managed(t);
}

static void do_tensor(void)
{
    open_tensor(dlx_message_tensor);
}
static void do_private(void)
{
    open_tensor(dlx_message_tensor_private);
}
static void do_look(void)
{
    print_managed(get(1));
}

static void do_write(void)
{
    const DLManagedTensorVersioned *t = get(1);
    if (t->flags & DLPACK_FLAG_BITMASK_READ_ONLY) {
        printf("refused the tensor is read-only");
        return;
    }
    fill(&t->dl_tensor, (unsigned)atoi(words[2]));
    print_managed(t);
}

static void do_done(void)
{
    done(dlx_message_done(get(1)));
}
static void do_give_back(void)
{
    done(dlx_message_give_back(get(1)));
}
static void do_renew(void)
{
    done(dlx_message_renew(get(1)));
}

static void keep_event(struct object *o, const char *text)
{
    char *more = NULL;
    if (asprintf(&more, "%s %s", o->events ? o->events : "", text) < 0)
        abort();
    free(o->events);
    o->events = more;
}

/* `r` is what the call returned that found no further one. */
static void say_events(const struct object *o, int r)
{
    if (r != DLX_E_EMPTY)
        fail(r);
    else
        printf("ok%s", o->events ? o->events : "");
}

static void do_events(void)
{
    static const char *const kinds[] = {
        [DLX_EVENT_JOINED] = "joined",
        [DLX_EVENT_LEFT] = "left",
        [DLX_EVENT_LOST] = "lost",
        [DLX_EVENT_UNPINNED] = "unpinned",
        [DLX_EVENT_LATE] = "late",
        [DLX_EVENT_RECONNECTED] = "reconnected",
        [DLX_EVENT_UNSEEN] = "unseen",
        [DLX_EVENT_CPU_WAITED] = "cpu_waited",
        [DLX_EVENT_DEAD_LETTER] = "dead_letter",
    };
    struct object *o = find(words[1]);
    struct dlx_event e = {.size = sizeof e};
    char text[sizeof e.topic + 64];
    int r;
    while ((r = o->kind == PUBLISHER ? dlx_publisher_next_event(o->handle, &e)
                                     : dlx_subscription_next_event(o->handle, &e)) == 0) {
        (void)snprintf(text, sizeof text, "%s:%s:%u", kinds[e.kind], e.topic, e.pid);
        keep_event(o, text);
    }
    say_events(o, r);
}

/* ---- observers, and what publishers offer --------------------------------------------------- */

static void do_observe(void)
{
    struct dlx_observer *o = NULL;
    const char *kinds = text_of("kinds", "");
    struct dlx_observer_args args = {.size = sizeof args,
                                     .kinds = *kinds == 'p'   ? DLX_OBSERVED_PUBLISHER
                                              : *kinds == 's' ? DLX_OBSERVED_SUBSCRIPTION
                                                              : 0};
    int r = dlx_observer_new(get(2), words[3], &args, &o);
    made(r, OBSERVER, o);
}

/* ON_FULL:DEPTH:HISTORY:RETAIN:RETAIN_FOR */
static void write_qos(FILE *to, uint32_t on_full, uint32_t depth, uint32_t history, uint32_t retain,
                      int64_t retain_for_ns)
{
    (void)fprintf(to, "%s:%u:%u:%u:", on_full == DLX_ON_FULL_BLOCK ? "block" : "drop", depth,
                  history, retain);
    if (retain_for_ns == 0 || retain_for_ns == DLX_RETAIN_LATCHED)
        (void)fprintf(to, retain_for_ns == 0 ? "forever" : "latched");
    else
        (void)fprintf(to, "%" PRId64, retain_for_ns / 1000000);
}

static void do_qos(void)
{
    struct dlx_message_qos qos = {.size = sizeof qos};
    int r = dlx_message_get_qos(get(1), &qos);
    if (r < 0) {
        fail(r);
        return;
    }
    printf("ok ");
    write_qos(stdout, qos.on_full, qos.depth, qos.history, qos.retain, qos.retain_for_ns);
    printf(":%d", qos.reliable);
}

static void write_change(FILE *to, const struct dlx_observed *x)
{
    const bool is_publisher = x->kind == DLX_OBSERVED_PUBLISHER;
    if (x->kind == DLX_OBSERVED_ALL) {
        (void)fprintf(to, "all");
        return;
    }
    (void)fprintf(to, "%s:%s:%s:%u:%d:", is_publisher ? "publisher" : "subscription", x->topic,
                  x->gone       ? "gone"
                  : x->retained ? "retained"
                                : "there",
                  x->pid, x->own);
    if (is_publisher)
        write_qos(to, x->on_full, x->depth, x->history, x->retain, x->retain_for_ns);
    else
        (void)fprintf(to, "%s:%d:%d:%s", x->mode == DLX_MODE_LATEST ? "latest" : "all", x->reliable,
                      x->accepts_unreliable, *x->group ? x->group : "-");
    for (uint32_t i = 0; i < x->n_groups; i++)
        (void)fprintf(to, "%s%s", i > 0 ? "," : ":", x->groups[i]);
    if (is_publisher && x->n_groups == 0)
        (void)fprintf(to, ":-");
}

/* The next change, which is kept. Its text is the caller's. */
static int next_change(struct object *o, int64_t timeout_ns, char **ret_text)
{
    struct dlx_observed x = {.size = sizeof x};
    size_t size;
    int r = dlx_observer_next(o->handle, timeout_ns, &x);
    if (r < 0)
        return r;
    FILE *to = open_memstream(ret_text, &size);
    if (!to)
        abort();
    write_change(to, &x);
    (void)fclose(to);
    keep_event(o, *ret_text);
    return 0;
}

static void do_next(void)
{
    char *text = NULL;
    int r = next_change(find(words[1]), ns(words[2]), &text);
    if (r < 0)
        none_or_fail(r);
    else
        printf("ok %s", text);
    free(text);
}

static void do_changes(void)
{
    struct object *o = find(words[1]);
    char *text = NULL;
    int r;
    while ((r = next_change(o, 0, &text)) == 0) {
        free(text);
        text = NULL;
    }
    say_events(o, r);
}

/* ---- counters, descriptors and lists -------------------------------------------------------- */

static void do_stats(void)
{
    struct object *o = find(words[1]);
    struct dlx_publisher_stats p = {.size = sizeof p};
    struct dlx_subscription_stats s = {.size = sizeof s};
    struct dlx_caller_stats k = {.size = sizeof k};
    struct dlx_service_stats v = {.size = sizeof v};
    int r = o->kind == PUBLISHER      ? dlx_publisher_get_stats(o->handle, &p)
            : o->kind == SUBSCRIPTION ? dlx_subscription_get_stats(o->handle, &s)
            : o->kind == CALLER       ? dlx_caller_get_stats(o->handle, &k)
                                      : dlx_service_get_stats(o->handle, &v);
    if (r < 0)
        fail(r);
    else if (o->kind == PUBLISHER)
        printf("ok published=%" PRIu64 " bytes=%" PRIu64 " copied=%" PRIu64 " refused=%" PRIu64
               " subscribers=%u",
               p.published, p.published_bytes, p.copied, p.refused, p.n_subscribers);
    else if (o->kind == SUBSCRIPTION)
        printf("ok taken=%" PRIu64 " bytes=%" PRIu64 " skipped=%" PRIu64 " lost=%" PRIu64
               " held=%u publishers=%u daemon=%d done=%" PRIu64 " redelivered=%" PRIu64
               " dead=%" PRIu64,
               s.taken, s.taken_bytes, s.skipped, s.lost, s.n_held, s.n_publishers, s.has_daemon,
               s.done, s.redelivered, s.dead);
    else if (o->kind == CALLER)
        printf("ok calls=%" PRIu64 " replies=%" PRIu64 " failed=%" PRIu64 " timed_out=%" PRIu64
               " cancelled=%" PRIu64 " in_flight=%u",
               k.calls, k.replies, k.failed, k.timed_out, k.cancelled, k.n_in_flight);
    else
        printf("ok requests=%" PRIu64 " replies=%" PRIu64 " errors=%" PRIu64 " held=%u", v.requests,
               v.replies, v.errors, v.n_held);
}

static void do_poll(void)
{
    const struct object *o = find(words[1]);
    struct pollfd p = {.events = POLLIN};
    p.fd = o->kind == PUBLISHER      ? dlx_publisher_fd(o->handle)
           : o->kind == SUBSCRIPTION ? dlx_subscription_fd(o->handle)
           : o->kind == OBSERVER     ? dlx_observer_fd(o->handle)
           : o->kind == CALLER       ? dlx_caller_fd(o->handle)
                                     : dlx_service_fd(o->handle);
    if (p.fd < 0)
        fail(p.fd);
    else
        printf(poll(&p, 1, atoi(words[2])) == 1 ? "ok" : "none");
}

static int print_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    printf("%s %s:%s:%" PRIu64 ":%d", *(const char **)userdata, info->topic, info->client_name,
           info->published, info->retained);
    *(const char **)userdata = "";
    return 0;
}

static int print_group(const struct dlx_group_info *info, void *userdata)
{
    printf("%s %s:%s:%u:%" PRIu64 ":%" PRIu64 ":%" PRIu64, *(const char **)userdata, info->topic,
           info->name, info->n_workers, info->waiting, info->in_flight, info->done);
    *(const char **)userdata = "";
    return 0;
}

/* The first entry prints the "ok", too. */
static void do_list(void)
{
    const char *begin = "ok";
    int r = strcmp(words[0], "groups") == 0
                ? dlx_list_groups(get(1), words[2], print_group, &begin)
                : dlx_list_publishers(get(1), words[2], print_publisher, &begin);
    if (r < 0)
        fail(r);
    else
        printf("%s", begin);
}

static void do_drop_retained(void)
{
    done(dlx_drop_retained(get(1), words[2]));
}
static void do_drop_queue(void)
{
    done(dlx_drop_queue(get(1), words[2]));
}

/* ---- calls --------------------------------------------------------------------------------- */

static void do_caller(void)
{
    struct dlx_caller *k = NULL;
    struct dlx_caller_args args = {.size = sizeof args,
                                   .max_in_flight = number_of("max_in_flight")};
    int r = dlx_caller_new(get(2), words[3], &args, &k);
    made(r, CALLER, k);
}

static void do_service(void)
{
    struct dlx_service *v = NULL;
    struct dlx_service_args args = {.size = sizeof args, .max_held = number_of("max_held")};
    int r = dlx_service_new(get(2), words[3], &args, &v);
    made(r, SERVICE, v);
}

static struct dlx_call_args call_args(void)
{
    static struct dlx_publish_args publish;
    publish = outgoing.args;
    publish.timeout_ns = 0;
    return (struct dlx_call_args){.size = sizeof(struct dlx_call_args),
                                  .timeout_ns = outgoing.args.timeout_ns,
                                  .idempotent = number_of("idempotent"),
                                  .meta = outgoing.meta.data ? &outgoing.meta : NULL,
                                  .publish = &publish};
}

/* A call failed: with the code that the worker gave, 0 if none. */
static void call_failed(int code, int worker_code, const char *text)
{
    printf("error %s %d %s", dlx_error_name(code), worker_code, text);
}

static void do_call(void)
{
    struct dlx_caller *k = get(2);
    struct dlx_message *m = NULL;
    bool sent = false;
    if (read_items(find(words[2]), 3) < 0)
        return;
    struct dlx_call_args args = call_args();
    int r = dlx_call(k, outgoing.items, outgoing.n, &args, &m, &sent);
    if (r < 0) {
        call_failed(r, r == DLX_E_CALL_FAILED ? dlx_caller_worker_code(k) : 0, dlx_errmsg());
    } else {
        (void)put(words[1], MESSAGE, m);
        print_message(m);
    }
    give_away(sent);
}

static void do_begin(void)
{
    uint64_t call = 0;
    if (read_items(find(words[2]), 3) < 0)
        return;
    struct dlx_call_args args = call_args();
    int r = dlx_call_begin(get(2), outgoing.items, outgoing.n, &args, &call);
    give_away(r == 0);
    done(r);
    if (r == 0)
        put(words[1], NOTHING, NULL)->call = call;
}

/* The result of a call has the name of the call. */
static void do_result(void)
{
    struct dlx_call_result result = {.size = sizeof result};
    int r = dlx_call_take(get(1), ns(words[2]), &result);
    if (r < 0) {
        none_or_fail(r);
        return;
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i].call == result.call && objects[i].name[0]) {
            printf("%s ", objects[i].name);
            objects[i].call = 0;
            if (result.code == 0) {
                objects[i].kind = MESSAGE;
                objects[i].handle = result.reply;
                print_message(result.reply);
            } else {
                call_failed(result.code, result.worker_code, result.text);
                release(&objects[i]);
            }
        }
}

static void do_cancel(void)
{
    done(dlx_call_cancel(get(1), find(words[2])->call));
    release(find(words[2]));
}

static void do_serve(void)
{
    struct dlx_request *request = NULL;
    int r = dlx_service_take(get(2), ns(words[3]), &request);
    if (r < 0) {
        none_or_fail(r);
        return;
    }
    (void)put(words[1], REQUEST, request);
    print_message(dlx_request_message(request));
}

static void do_reply(void)
{
    struct dlx_request *request = get(1);
    if (read_items(find(words[1]), 2) < 0)
        return;
    struct dlx_reply_args args = {.size = sizeof args,
                                  .meta = outgoing.meta.data ? &outgoing.meta : NULL,
                                  .publish = &outgoing.args};
    int r = dlx_reply(request, outgoing.items, outgoing.n, &args);
    give_away(r == 0);
    done(r);
}

static void do_reply_error(void)
{
    done(dlx_reply_error(get(1), atoi(words[2]), words[3]));
}
static void do_cancelled(void)
{
    printf("ok %d", dlx_request_cancelled(get(1)));
}

/* ---- the program --------------------------------------------------------------------------- */

static void do_drop(void)
{
    (void)get(1);
    release(find(words[1]));
    printf("ok");
}

/* Requests before their services, since these answer what is left. */
static void do_reset(void)
{
    for (int i = 0; i < OBJECTS; i++)
        release(&objects[i]);
    printf("ok");
}

static const struct {
    const char *name;
    void (*run)(void);
} commands[] = {
    {"version", do_version},
    {"supports", do_supports},
    {"connect", do_connect},
    {"publisher", do_publisher},
    {"subscribe", do_subscribe},
    {"alloc", do_alloc},
    {"publish", do_publish},
    {"wait", do_wait},
    {"drain", do_drain},
    {"take", do_take},
    {"get", do_get},
    {"take_many", do_take_many},
    {"rest", do_rest},
    {"tensor", do_tensor},
    {"private", do_private},
    {"look", do_look},
    {"write", do_write},
    {"done", do_done},
    {"give_back", do_give_back},
    {"renew", do_renew},
    {"events", do_events},
    {"observe", do_observe},
    {"next", do_next},
    {"changes", do_changes},
    {"qos", do_qos},
    {"stats", do_stats},
    {"poll", do_poll},
    {"publishers", do_list},
    {"groups", do_list},
    {"drop_queue", do_drop_queue},
    {"drop_retained", do_drop_retained},
    {"caller", do_caller},
    {"service", do_service},
    {"call", do_call},
    {"begin", do_begin},
    {"result", do_result},
    {"cancel", do_cancel},
    {"serve", do_serve},
    {"reply", do_reply},
    {"reply_error", do_reply_error},
    {"cancelled", do_cancelled},
    {"drop", do_drop},
    {"reset", do_reset},
};

static void *run(void *userdata)
{
    (void)userdata;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, words[0]) == 0) {
            commands[i].run();
            printf("\n");
            (void)fflush(stdout);
            return NULL;
        }
    printf("unsupported %s\n", words[0]);
    (void)fflush(stdout);
    return NULL;
}

static void split(char *line)
{
    n_words = n_options = 0;
    for (char *word; (word = strsep(&line, " "));) {
        if (strchr(word, '='))
            options[n_options++] = word;
        else
            words[n_words++] = word;
        if (n_words == 3 && strcmp(words[0], "reply_error") == 0 && line) {
            words[n_words++] = line; /* the rest is its text */
            break;
        }
    }
    words[n_words] = NULL;
}

static void on_signal(int number)
{
    has_signal = number;
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigaction(SIGUSR1, &action, NULL); /* waits of libdlx end then */
    while (getline(&line, &room, stdin) > 0) {
        pthread_t thread;
        line[strcspn(line, "\n")] = '\0';
        has_signal = 0;
        if (strstr(line, "\\0")) {
            printf("refused a text of C has no NUL inside\n");
            (void)fflush(stdout);
        } else if (strncmp(line, "fork ", 5) == 0) {
            pid_t pid = fork();
            split(line + 5);
            if (pid == 0) {
                (void)run(NULL);
                _exit(0);
            }
            (void)waitpid(pid, NULL, 0);
        } else if (strncmp(line, "thread ", 7) == 0) {
            split(line + 7);
            if (pthread_create(&thread, NULL, run, NULL) == 0)
                (void)pthread_join(thread, NULL);
        } else {
            split(line);
            (void)run(NULL);
        }
    }
    for (int i = 0; i < OBJECTS; i++)
        release(&objects[i]);
    free(line);
    return 0;
}
