/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the library with a hostile daemon. The input is a program that puts packets into the
 * library's sockets before it asks (replies, and notifications of links, control blocks and arenas,
 * right ones or with any values and any descriptors), writes the shared memory, and calls the
 * library. No call blocks or crashes; what it fails with has words; a tensor that it hands out can
 * be read; at the end every descriptor is closed and every map is gone.
 */
#include "client/control/call.h"
#include "client/publish/publisher.h"
#include "client/control/connection.h"
#include "client/subscribe/subscription.h"
#include "common/memory.h"
#include "ring/entry.h"
#include "tests/fuzz/harness_fuzz.h"
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

#define ENTRIES    DLX_SHM_ENTRIES_MIN
#define PUB_DEPTH  6U
#define HELD       2U
#define ARENA_SIZE 16384U /* what a publisher's first one has */
#define LINKS      3U
#define MESSAGES   4U

/* Of a control block with so many entries. */
#define CONTROL_SIZE                                                                               \
    ((sizeof(struct dlx_shm_control) + ENTRIES * sizeof(struct dlx_shm_entry) + DLX_PAGE - 1) /    \
     DLX_PAGE * DLX_PAGE)

/* Memory that the daemon hands out: made once, zeroed for each run. */
enum region {
    PAGE,
    LINK_PAGE,
    CONTROL,
    CONTROL_2,
    ARENA,
    PUB_CONTROL,
    PUB_ARENA,
    MEMBERSHIP,
    N_REGIONS
};

static struct {
    uint64_t size;
    int fd;
    uint8_t *map;
} regions[N_REGIONS] = {
    [PAGE] = {.size = DLX_PAGE},        [LINK_PAGE] = {.size = DLX_PAGE},
    [CONTROL] = {.size = CONTROL_SIZE}, [CONTROL_2] = {.size = CONTROL_SIZE},
    [ARENA] = {.size = DLX_PAGE},       [PUB_CONTROL] = {.size = CONTROL_SIZE},
    [PUB_ARENA] = {.size = ARENA_SIZE}, [MEMBERSHIP] = {.size = DLX_PAGE},
};

static uint64_t sum;
static uint8_t bytes[DLX_PACKET_SIZE_MAX];

struct state {
    struct dlx_fuzz f;
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    struct dlx_message *messages[MESSAGES];
    int control, notification, links; /* the daemon's ends; -1: closed */
    int bells[8];
    uint32_t n_bells;
    uint32_t ahead; /* replies that are queued */
    struct dlx_fuzz_ids ids;
};

/* ---- the daemon's side ----------------------------------------------------------------------- */

/* Another end of a socket pair, which the daemon keeps. */
static int make_pair(int *ret_kept)
{
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    dlx__close(*ret_kept);
    *ret_kept = pair[0];
    return pair[1];
}

static int make_bell(struct state *s)
{
    int *at = &s->bells[s->n_bells++ % DLX_ARRAY_SIZE(s->bells)];
    return make_pair(at);
}

static int region_fd(enum region which)
{
    return fcntl(regions[which].fd, F_DUPFD_CLOEXEC, 0);
}

/* The fds of packets, besides regions. */
enum { BELL = N_REGIONS, NULL_FILE, LINK_SOCK, NOTIFICATION_SOCK, PIDFD, EITHER_CONTROL };

static const struct {
    Dlx__Wire__Packet__BodyCase body;
    size_t n;
    uint32_t fds[3];
} right_fds[] = {
    {BODY(PUBLISHER_NEW_REPLY), 3, {PUB_CONTROL, MEMBERSHIP, LINK_SOCK}},
    {BODY(ARENA_NEW_REPLY), 1, {PUB_ARENA}},
    {BODY(SUBSCRIBE_REPLY), 1, {NOTIFICATION_SOCK}},
    {BODY(LINK_OFFER), 1, {PAGE}},
    {BODY(LINK_OPEN), 2, {EITHER_CONTROL, BELL}},
    {BODY(ARENA_ADDED), 1, {ARENA}},
    {BODY(LINK_ADDED), 3, {LINK_PAGE, BELL, PIDFD}},
};

static int make_fd(struct state *s, uint32_t what, uint32_t which)
{
    switch (what) {
    case BELL:
        return make_bell(s);
    case NULL_FILE:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case LINK_SOCK:
        return make_pair(&s->links);
    case NOTIFICATION_SOCK:
        return make_pair(&s->notification);
    case PIDFD:
        return (int)syscall(SYS_pidfd_open, getpid(), 0);
    case EITHER_CONTROL:
        return region_fd(which ? CONTROL_2 : CONTROL);
    default:
        return region_fd((enum region)what);
    }
}

/* The caller closes them. */
static size_t make_right_fds(struct state *s, Dlx__Wire__Packet__BodyCase body, uint32_t which,
                             int fds[4])
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(right_fds); i++) {
        if (right_fds[i].body != body)
            continue;
        for (size_t k = 0; k < right_fds[i].n; k++)
            fds[k] = make_fd(s, right_fds[i].fds[k], which);
        return right_fds[i].n;
    }
    return 0;
}

/* The values of a packet of an honest daemon, where they must be right to get further. */
static void make_right(struct state *s, Dlx__Wire__Packet *packet)
{
    uint64_t link = 1 + dlx_fuzz_choose(&s->f, LINKS);
    switch (packet->body_case) {
    case BODY(HELLO_REPLY):
        packet->hello_reply->major = DLX_PROTO_MAJOR;
        packet->hello_reply->memory = 0;
        break;
    case BODY(PUBLISHER_NEW_REPLY):
        packet->publisher_new_reply->control_size = regions[PUB_CONTROL].size;
        packet->publisher_new_reply->membership_size = DLX_PAGE;
        packet->publisher_new_reply->membership_line %= 64;
        break;
    case BODY(ARENA_NEW_REPLY):
        packet->arena_new_reply->arena_size = ARENA_SIZE;
        break;
    case BODY(SUBSCRIBE_REPLY):
        packet->subscribe_reply->n_offers %= LINKS;
        break;
    case BODY(LINK_OFFER):
        packet->link_offer->link = link;
        packet->link_offer->page_size = DLX_PAGE;
        packet->link_offer->max_held = HELD;
        break;
    case BODY(LINK_OPEN):
        packet->link_open->link = link;
        packet->link_open->control_size = CONTROL_SIZE;
        packet->link_open->n_entries = ENTRIES;
        packet->link_open->after_seq %= 8;
        packet->link_open->n_arenas %= 3;
        break;
    case BODY(ARENA_ADDED):
        packet->arena_added->link = link;
        packet->arena_added->arena_size = DLX_PAGE;
        packet->arena_added->arena %= 4;
        break;
    case BODY(ARENA_DROPPED):
        packet->arena_dropped->link = link;
        packet->arena_dropped->arena %= 4;
        break;
    case BODY(PUBLISHER_GONE):
        packet->publisher_gone->link = link;
        break;
    case BODY(LINK_FAILED):
        packet->link_failed->link = link;
        break;
    case BODY(LINK_ADDED):
        packet->link_added->page_size = DLX_PAGE;
        packet->link_added->max_held = HELD;
        break;
    default:
        break;
    }
}

/* Any fds, any number. */
static size_t make_wrong_fds(struct state *s, int fds[4])
{
    size_t n = dlx_fuzz_choose(&s->f, 5);
    for (size_t i = 0; i < n; i++)
        fds[i] = make_fd(s, dlx_fuzz_choose(&s->f, N_REGIONS + 2), 0);
    return n;
}

static void queue(struct state *s, int sock, Dlx__Wire__Packet__BodyCase body, uint32_t serial)
{
    static struct dlx_proto_arena arena;
    struct dlx_fuzz *f = &s->f;
    const Dlx__Wire__Packet *packet;
    int fds[4];
    uint32_t how = dlx_fuzz_choose(f, 16), which = how & 1;
    size_t size = dlx_fuzz_packet(f, body, serial, &s->ids, bytes);
    if (sock < 0 || size == 0)
        return;
    if (how < 14 && dlx__proto_unpack(&arena, bytes, size, &packet) == 0) {
        Dlx__Wire__Packet *mine = (Dlx__Wire__Packet *)(uintptr_t)packet;
        make_right(s, mine);
        if (dlx__wire__packet__get_packed_size(mine) <= sizeof bytes)
            size = dlx__wire__packet__pack(mine, bytes);
    }
    size_t n_fds =
        how != 13 && how != 15 ? make_right_fds(s, body, which, fds) : make_wrong_fds(s, fds);
    (void)dlx__packet_send(sock, bytes, size, fds, n_fds);
    for (size_t i = 0; i < n_fds; i++)
        dlx__close(fds[i]);
}

static void queue_reply(struct state *s)
{
    static const Dlx__Wire__Packet__BodyCase replies[] = {
        BODY(OK),
        BODY(PUBLISHER_NEW_REPLY),
        BODY(SUBSCRIBE_REPLY),
        BODY(ARENA_NEW_REPLY),
        BODY(OK),
        BODY(PUBLISHER_LIST),
        BODY(LINK_LIST),
        BODY(GROUP_LIST),
        BODY(CLAIM_LIST),
        BODY(DAEMON_INFO_REPLY),
        BODY(RETAINED_DROP_REPLY),
        BODY(ERROR),
        BODY(HELLO_REPLY),
        BODY(DISCONNECT),
        BODY(LINK_OFFER),
    };
    uint32_t what = dlx_fuzz_choose(&s->f, DLX_ARRAY_SIZE(replies));
    uint32_t skew = dlx_fuzz_choose(&s->f, 16);
    /* Mostly that of the request to come. */
    uint32_t serial = s->c->serial + 1 + s->ahead + (skew == 15 ? 7 : 0);
    s->ahead += skew < 14;
    queue(s, s->control, replies[what], skew == 14 ? 0 : serial);
}

static void queue_news(struct state *s)
{
    static const Dlx__Wire__Packet__BodyCase notification[] = {
        BODY(LINK_OFFER),    BODY(LINK_OPEN),      BODY(ARENA_ADDED), BODY(ARENA_ADDED),
        BODY(ARENA_DROPPED), BODY(PUBLISHER_GONE), BODY(LINK_FAILED), BODY(LINK_ADDED),
    };
    queue(s, s->notification, notification[dlx_fuzz_choose(&s->f, DLX_ARRAY_SIZE(notification))],
          0);
}

static void scribble(struct state *s)
{
    struct dlx_fuzz *f = &s->f;
    uint32_t which = dlx_fuzz_choose(f, N_REGIONS);
    uint64_t at = dlx_fuzz_bytes(f, 2) * 8, value = dlx_fuzz_number(f);
    if (which == PAGE || which == PUB_CONTROL || which == PUB_ARENA)
        return; /* the library's own */
    memcpy(regions[which].map + at % regions[which].size, &value, sizeof value);
}

/* A message of one small tensor, as an honest publisher writes it; or the mark that none will
 * come. */
static void publish(struct state *s)
{
    const int64_t shape = 10;
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0};
    uint32_t how = dlx_fuzz_choose(&s->f, 32);
    struct dlx_shm_control *control = (void *)regions[how & 1 ? CONTROL_2 : CONTROL].map;
    uint64_t n = dlx_load64_relaxed(&control->head) + 1;
    struct dlx_shm_entry *entry = &control->entries[n & (ENTRIES - 1)];
    if (how & 24) {
        static const uint64_t marks[] = {0, DLX_SHM_MOVED, DLX_SHM_END, DLX_SHM_GONE};
        dlx_store64_relaxed(&entry->gen, n | marks[how >> 3]);
        return;
    }
    REQUIRE(dlx__entry_pack_tensor(words, 1 + (how >> 1) % 4, 0, (DLDataType){kDLFloat, 32, 1},
                                   false, 1, &shape));
    for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
        dlx_store64_relaxed(&entry->words[i], words[i]);
    dlx_store64_relaxed(&entry->gen, n);
    dlx_store64_relaxed(&control->head, n);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void check_result(int r)
{
    REQUIRE(r <= 0); /* a later daemon may have codes that we do not know */
    if (r < 0 && r != DLX_E_EMPTY)
        REQUIRE(*dlx_errmsg());
}

static int on_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    REQUIRE(strnlen(info->topic, sizeof info->topic) < sizeof info->topic);
    REQUIRE(strnlen(info->client_name, sizeof info->client_name) < sizeof info->client_name);
    return ++*(int *)userdata > 200;
}

static int on_link(const struct dlx_link_info *info, void *userdata)
{
    REQUIRE(strnlen(info->client_name, sizeof info->client_name) < sizeof info->client_name);
    return ++*(int *)userdata > 200;
}

static int on_group(const struct dlx_group_info *info, void *userdata)
{
    REQUIRE(strnlen(info->topic, sizeof info->topic) < sizeof info->topic &&
            strnlen(info->name, sizeof info->name) < sizeof info->name && info->lease_ns >= 0);
    return ++*(int *)userdata > 200;
}

static int on_claim(const struct dlx_claim_info *info, void *userdata)
{
    REQUIRE(strnlen(info->client_name, sizeof info->client_name) < sizeof info->client_name);
    return ++*(int *)userdata > 200;
}

static void subscribe(struct state *s)
{
    uint32_t how = dlx_fuzz_choose(&s->f, 32);
    struct dlx_subscribe_args args = {.size = sizeof args, .max_held = HELD};
    args.mode = how & 1 ? DLX_MODE_LATEST : DLX_MODE_ALL;
    args.reliable = (how & 3) == 2;
    args.history = how & 4 ? 3 : 0;
    args.spin_ns = DLX_SPIN_NEVER;
    if (!s->s)
        check_result(dlx_subscribe(s->c, how & 8 ? "a/*" : "t", &args, &s->s));
}

static void publisher_new(struct state *s)
{
    uint32_t how = dlx_fuzz_choose(&s->f, 16);
    struct dlx_publisher_args args = {.size = sizeof args, .depth = PUB_DEPTH, .history = 2};
    args.on_full = how & 1 ? DLX_ON_FULL_BLOCK : 0;
    args.retain = how & 2 ? 1 : 0;
    if (!s->p)
        check_result(dlx_publisher_new(s->c, "t", &args, &s->p));
}

static void publish_one(struct state *s)
{
    static float numbers[4] = {1, 2, 3, 4};
    int64_t shape = 4;
    DLManagedTensorVersioned *t = NULL;
    DLManagedTensorVersioned private = {.version = {DLPACK_MAJOR_VERSION, 0},
                                        .dl_tensor = {.data = numbers,
                                                      .device = {kDLCPU, 0},
                                                      .ndim = 1,
                                                      .dtype = {kDLFloat, 32, 1},
                                                      .shape = &shape}};
    if (!s->p)
        return;
    if (dlx_fuzz_choose(&s->f, 2)) {
        check_result(dlx_publish(s->p, &private, NULL, NULL));
        return;
    }
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLFloat, 32, 1}, .ndim = 1, .shape = &shape};
    int r = dlx_alloc(s->p, &spec, &t);
    check_result(r);
    if (r < 0)
        return;
    memcpy(t->dl_tensor.data, numbers, sizeof numbers);
    r = dlx_publish(s->p, t, NULL, NULL);
    check_result(r);
    if (r < 0)
        t->deleter(t);
}

static void take(struct state *s)
{
    struct dlx_message *taken[MESSAGES];
    uint32_t at = 0, n = 1, n_free = 0;
    for (uint32_t i = 0; i < MESSAGES; i++)
        n_free += !s->messages[i];
    if (!s->s || n_free == 0)
        return;
    bool batch = s->f.left % 2; /* takes no byte of the input for that */
    int r = batch ? dlx_take_n(s->s, n_free, 0, taken, &n) : dlx_take(s->s, 0, &taken[0]);
    check_result(r);
    if (r < 0)
        return;
    REQUIRE(n >= 1 && n <= n_free);
    for (uint32_t k = 0; k < n; k++) {
        struct dlx_message *m = taken[k];
        while (s->messages[at])
            at++;
        s->messages[at] = m;
        for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
            const DLTensor *t = dlx_message_tensor_peek(m, i);
            if (t->ndim == 1 && t->shape[0] > 0)
                sum += *(const uint8_t *)t->data;
        }
        REQUIRE(strlen(dlx_message_topic(m)) <= DLX_TOPIC_MAX);
    }
}

static void release(struct state *s)
{
    uint32_t at = dlx_fuzz_choose(&s->f, MESSAGES);
    s->messages[at] = dlx_message_unref(s->messages[at]);
}

static void ask(struct state *s)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    struct dlx_event event = {.size = sizeof event};
    struct dlx_subscription_stats stats = {.size = sizeof stats};
    struct dlx_publisher_stats pub_stats = {.size = sizeof pub_stats};
    int n = 0;
    switch (dlx_fuzz_choose(&s->f, 13)) {
    case 0:
        n = dlx_list_publishers(s->c, "a/*", on_publisher, &n);
        break;
    case 1:
        n = dlx_list_links(s->c, 1, on_link, &n);
        break;
    case 2:
        n = dlx_client_get_daemon_info(s->c, &info);
        break;
    case 3:
        n = dlx_drop_retained(s->c, "t");
        break;
    case 4:
        n = s->s && dlx_subscription_fd(s->s) < 0 ? DLX_E_SYSTEM : 0;
        break;
    case 5:
        n = s->s ? dlx_subscription_get_stats(s->s, &stats) : 0;
        break;
    case 6:
        n = s->s ? dlx_subscription_next_event(s->s, &event) : 0;
        break;
    case 7:
        n = s->p ? dlx_publisher_next_event(s->p, &event) : 0;
        break;
    case 8:
        n = s->p ? dlx_publisher_get_stats(s->p, &pub_stats) : 0;
        break;
    case 9:
        n = dlx_list_groups(s->c, "a/*", on_group, &n);
        break;
    case 10:
        n = dlx_list_claims(s->c, 1, 1, on_claim, &n);
        break;
    case 11:
        n = dlx_drop_queue(s->c, "t");
        break;
    default: /* the connection again, as after a new daemon */
        if (s->c->sock >= 0)
            n = dlx__call_greet(s->c, "fuzz");
        REQUIRE(s->c->memory);
        break;
    }
    if (n < 0)
        check_result(n);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void hang_up(struct state *s)
{
    int *const ends[] = {&s->control, &s->notification, &s->links, &s->bells[0], &s->bells[1]};
    int *end = ends[dlx_fuzz_choose(&s->f, DLX_ARRAY_SIZE(ends))];
    *end = dlx__close(*end);
}

static void queue_join(struct state *s)
{
    queue(s, s->links, BODY(LINK_ADDED), 0);
    ((struct dlx_shm_membership *)(void *)regions[MEMBERSHIP].map)->joins++;
}

/* Packets that are queued for later calls. */
enum { FIRST_CALL = 9, LAST_CALL = 14 };
static void (*const steps[])(struct state *) = {
    queue_reply, queue_reply, queue_reply, queue_news, queue_news,    queue_news,
    queue_join,  scribble,    publish,     subscribe,  publisher_new, publish_one,
    take,        release,     ask,         hang_up,
};

static void step(struct state *s)
{
    uint32_t what = dlx_fuzz_choose(&s->f, DLX_ARRAY_SIZE(steps));
    steps[what](s);
    if (what >= FIRST_CALL && what <= LAST_CALL)
        s->ahead = 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < N_REGIONS; i++) {
        int fd, writer_fd;
        void *map;
        REQUIRE(dlx__region_new(&dlx__memory_memfd, "dlx-fuzz", regions[i].size, &fd, &writer_fd) ==
                0);
        REQUIRE(dlx__region_populate(&dlx__memory_memfd, writer_fd, regions[i].size, &map) == 0);
        regions[i].map = map;
        regions[i].fd = fd;
    }
    return 0;
}

static void begin(struct state *s)
{
    s->notification = s->links = -1;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(s->bells); i++)
        s->bells[i] = -1;
    for (int i = 0; i < N_REGIONS; i++)
        memset(regions[i].map, 0, regions[i].size);
    for (uint64_t id = 1; id <= 4; id++)
        dlx_fuzz_ids_add(&s->ids, id);
    s->control = -1;
    s->c = dlx_fuzz_client(make_pair(&s->control));
    s->c->next_try_ns = 0;
    /* The server answers Hello first. */
    Dlx__Wire__HelloReply body = DLX__WIRE__HELLO_REPLY__INIT;
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    body.major = DLX_PROTO_MAJOR;
    body.version = (char *)(uintptr_t) "fuzz";
    packet.serial = 1;
    packet.body_case = BODY(HELLO_REPLY);
    packet.hello_reply = &body;
    REQUIRE(dlx__proto_send(s->control, &packet, NULL, 0) == 0);
    REQUIRE(dlx__call_greet(s->c, "fuzz") == 0);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    struct state s = {.f = *f};
    begin(&s);
    while (s.f.left > 0)
        step(&s);
    dlx_publisher_unref(s.p);
    dlx_subscription_unref(s.s);
    for (uint32_t i = 0; i < MESSAGES; i++)
        dlx_message_unref(s.messages[i]);
    dlx_client_unref(s.c);
    dlx__close(s.control);
    dlx__close(s.notification);
    dlx__close(s.links);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(s.bells); i++)
        dlx__close(s.bells[i]);
}
