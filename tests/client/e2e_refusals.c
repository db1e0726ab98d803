/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Refusals of the public calls, as the header says: arguments that are NULL, impossible numbers,
 * handles of a parent process. Each has its code and words, and changes nothing.
 */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

/* Handles of each kind, or NULL where a call is told without. */
static struct {
    struct dlx_client *c;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    struct dlx_message *m;
    struct dlx_observer *o;
    DLManagedTensorVersioned *t;
    DLManagedTensor *legacy;
} x;

#define DEFINE_CALLBACK(name, info_type)                                                           \
    static int name(const struct info_type *info, void *userdata)                                  \
    {                                                                                              \
        (void)info;                                                                                \
        (void)userdata;                                                                            \
        return 0;                                                                                  \
    }
DEFINE_CALLBACK(on_publisher, dlx_publisher_info)
DEFINE_CALLBACK(on_quota, dlx_quota_info)
DEFINE_CALLBACK(on_link, dlx_link_info)

static void make_all(void)
{
    struct dlx_test_pair pair = dlx_test_pair_make(NULL, NULL);
    x.c = pair.c;
    x.p = pair.p;
    x.s = pair.s;
    dlx_test_stream_publish(x.p, 10, 1);
    ok(dlx_take(x.s, PATIENCE, &x.m));
    x.t = dlx_test_stream_alloc(x.p, 10, 2);
    ok(dlx_observer_new(x.c, "other", NULL, &x.o));
    ok(dlx_message_tensor_legacy(x.m, 0, true, &x.legacy));
}

static void end_all(void)
{
    x.t->deleter(x.t);
    x.legacy->deleter(x.legacy);
    dlx_message_unref(x.m);
    dlx_observer_unref(x.o);
    auto_pair pair = {x.c, x.p, x.s};
}

/* Memory for results, which the test checks to be unchanged. */
static union {
    void *pointer;
    uint32_t number;
    struct dlx_event event;
    struct dlx_publisher_stats publisher_stats;
    struct dlx_subscription_stats subscription_stats;
    struct dlx_daemon_info info;
    struct dlx_publisher *p;
    struct dlx_subscription *s;
    struct dlx_message *m;
    unsigned char bytes[1024]; /* more than any of them */
} out;

static int64_t shape[] = {4};
static const struct dlx_tensor_spec spec = INT64_SPEC(shape);
static struct dlx_item item;

/* Each call with one argument less than it needs: `without` counts them, past the last one all are
 * there. */
#define ARG(i, value) (without == (i) ? NULL : (value))
#define RET(type)     ((type)(void *)ARG(1, &out))
#define DEFINE_CALL(name, call)                                                                    \
    static int name(int without)                                                                   \
    {                                                                                              \
        return call;                                                                               \
    }

static int connects(int without)
{
    const struct dlx_connect_args args = {.size = sizeof args};
    return without == 0 ? dlx_connect(&args, NULL) : DLX_E_FORKED;
}

DEFINE_CALL(publisher_new, dlx_publisher_new(ARG(0, x.c), "a", NULL, RET(struct dlx_publisher **)))
DEFINE_CALL(allocs, dlx_alloc(ARG(0, x.p), ARG(2, &spec), RET(DLManagedTensorVersioned **)))
DEFINE_CALL(alloc_set,
            dlx_alloc_set(ARG(0, x.p), ARG(2, &spec), 1, RET(DLManagedTensorVersioned **)))
DEFINE_CALL(publishes, dlx_publish(ARG(0, x.p), ARG(1, x.t), NULL, NULL))

static int publish_n(int without)
{
    uint32_t n = 0;
    int r = dlx_publish_n(ARG(0, x.p), ARG(1, &x.t), 1, NULL, NULL, &n);
    return n == 0 ? r : 0;
}

DEFINE_CALL(publish_legacy, dlx_publish_legacy(ARG(0, x.p), ARG(1, x.legacy), NULL, NULL))

static int publish_set(int without)
{
    const struct dlx_bytes meta = {.data = ARG(2, "m"), .size = 1};
    item = (struct dlx_item){.tensor = x.t};
    return dlx_publish_set(ARG(0, x.p), ARG(1, &item), 1, &meta, NULL, NULL);
}

DEFINE_CALL(publisher_wait, dlx_publisher_wait(ARG(0, x.p), 1, 0))
DEFINE_CALL(publisher_next_event, dlx_publisher_next_event(ARG(0, x.p), RET(struct dlx_event *)))
DEFINE_CALL(publisher_get_stats,
            dlx_publisher_get_stats(ARG(0, x.p), RET(struct dlx_publisher_stats *)))
DEFINE_CALL(subscribes, dlx_subscribe(ARG(0, x.c), "a", NULL, RET(struct dlx_subscription **)))
DEFINE_CALL(subscription_fd, dlx_subscription_fd(ARG(0, x.s)))
DEFINE_CALL(takes, dlx_take(ARG(0, x.s), 0, RET(struct dlx_message **)))

static int takes_n(int without)
{
    uint32_t n = 0;
    return dlx_take_n(ARG(0, x.s), 1, 0, RET(struct dlx_message **), ARG(2, &n));
}

DEFINE_CALL(gets, dlx_get(ARG(0, x.c), "a", 0, RET(struct dlx_message **)))
DEFINE_CALL(drop_retained, dlx_drop_retained(ARG(0, x.c), "a"))
DEFINE_CALL(subscription_get_stats,
            dlx_subscription_get_stats(ARG(0, x.s), RET(struct dlx_subscription_stats *)))
DEFINE_CALL(subscription_next_event,
            dlx_subscription_next_event(ARG(0, x.s), RET(struct dlx_event *)))
DEFINE_CALL(message_find, dlx_message_tensor_find(ARG(0, x.m), ARG(2, "a"), RET(uint32_t *)))
DEFINE_CALL(message_tensor, dlx_message_tensor(ARG(0, x.m), 0, RET(DLManagedTensorVersioned **)))
DEFINE_CALL(message_private,
            dlx_message_tensor_private(ARG(0, x.m), 0, RET(DLManagedTensorVersioned **)))
DEFINE_CALL(message_tensor_legacy,
            dlx_message_tensor_legacy(ARG(0, x.m), 0, true, RET(DLManagedTensor **)))
DEFINE_CALL(list_publishers, dlx_list_publishers(ARG(0, x.c), NULL, ARG(1, on_publisher), NULL))
DEFINE_CALL(list_quotas, dlx_list_quotas(ARG(0, x.c), ARG(1, on_quota), NULL))
DEFINE_CALL(list_links, dlx_list_links(ARG(0, x.c), 0, ARG(1, on_link), NULL))
DEFINE_CALL(message_get_qos, dlx_message_get_qos(ARG(0, x.m), RET(struct dlx_message_qos *)))
DEFINE_CALL(observer_new, dlx_observer_new(ARG(0, x.c), "a", NULL, RET(struct dlx_observer **)))
DEFINE_CALL(observer_next, dlx_observer_next(ARG(0, x.o), 0, RET(struct dlx_observed *)))
DEFINE_CALL(observer_fd, dlx_observer_fd(ARG(0, x.o)))
DEFINE_CALL(daemon_info, dlx_client_get_daemon_info(ARG(0, x.c), RET(struct dlx_daemon_info *)))

/* With the names of the arguments that it needs. */
#define CALL(name, ...)                                                                            \
    {                                                                                              \
#name, name,                                                                               \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
static const struct {
    const char *name;
    int (*call)(int without);
    const char *needed[4];
} calls[] = {CALL(connects, "ret"),
             CALL(publisher_new, "client", "ret"),
             CALL(allocs, "publisher", "ret", "spec"),
             CALL(alloc_set, "publisher", "ret", "specs"),
             CALL(publishes, "publisher", "tensor"),
             CALL(publish_n, "publisher", "tensors"),
             CALL(publish_legacy, "publisher", "tensor"),
             CALL(publish_set, "publisher", "items", "meta->data"),
             CALL(publisher_wait, "publisher"),
             CALL(publisher_next_event, "publisher", "ret"),
             CALL(publisher_get_stats, "publisher", "ret"),
             CALL(subscribes, "client", "ret"),
             CALL(subscription_fd, "subscription"),
             CALL(takes, "subscription", "ret"),
             CALL(takes_n, "subscription", "ret", "ret_n"),
             CALL(gets, "client", "ret"),
             CALL(drop_retained, "client"),
             CALL(subscription_get_stats, "subscription", "ret"),
             CALL(subscription_next_event, "subscription", "ret"),
             CALL(message_find, "message", "ret", "name"),
             CALL(message_tensor, "message", "ret"),
             CALL(message_private, "message", "ret"),
             CALL(message_tensor_legacy, "message", "ret"),
             CALL(list_publishers, "client", "fn"),
             CALL(list_links, "client", "fn"),
             CALL(list_quotas, "client", "fn"),
             CALL(message_get_qos, "message", "ret"),
             CALL(observer_new, "client", "ret"),
             CALL(observer_next, "observer", "ret"),
             CALL(observer_fd, "observer"),
             CALL(daemon_info, "client", "ret")};

static bool nothing_written(void)
{
    static const unsigned char zero[sizeof out.bytes];
    return memcmp(out.bytes, zero, sizeof zero) == 0;
}

LOOP_TEST(every_call_needs_its_arguments, 0, (int)DLX_ARRAY_SIZE(calls))
{
    make_all();
    for (int without = 0; calls[_i].needed[without]; without++) {
        char words[64];
        (void)snprintf(words, sizeof words, ": %s is NULL", calls[_i].needed[without]);
        int r = calls[_i].call(without);
        ck_assert_msg(r == DLX_E_INVALID, "%s without argument %d: %d", calls[_i].name, without, r);
        ck_assert_msg(strstr(dlx_errmsg(), words), "%s: %s", calls[_i].name, dlx_errmsg());
        ck_assert(nothing_written());
    }
    end_all();
}

TEST(a_call_that_finds_nothing_says_so)
{
    struct dlx_message *m;
    struct dlx_event e = {.size = sizeof e};
    uint32_t n;
    make_all();
    while (dlx_publisher_next_event(x.p, &e) == 0)
        ;
    while (dlx_subscription_next_event(x.s, &e) == 0)
        ;
    fails(dlx_take(x.s, 0, &m), DLX_E_EMPTY, "no message is there");
    fails(dlx_take_n(x.s, 1, 0, &m, &n), DLX_E_EMPTY, "no message is there");
    fails(dlx_get(x.c, "nobody", 0, &m), DLX_E_EMPTY, "topic nobody has no message");
    fails(dlx_publisher_next_event(x.p, &e), DLX_E_EMPTY, "no event is there");
    fails(dlx_subscription_next_event(x.s, &e), DLX_E_EMPTY, "no event is there");
    ck_assert_int_eq(dlx_publisher_wait(x.p, 0, 0), 0);
    ck_assert_str_eq(dlx_errmsg(), ""); /* the next call has its own words */
    end_all();
}

TEST(no_call_takes_a_handle_of_the_parent)
{
    make_all();
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        for (size_t i = 0; i < DLX_ARRAY_SIZE(calls); i++) {
            int r = calls[i].call(-1);
            if (r != DLX_E_FORKED || !nothing_written()) {
                printf("%s in a child: %d (%s)\n", calls[i].name, r, dlx_errmsg());
                (void)fflush(stdout);
                _exit(1);
            }
        }
        if (!strstr(dlx_errmsg(), "fork"))
            _exit(2);
        /* The child may release the handles, which changes nothing of the parent's, and have a
         * client. */
        x.t->deleter(x.t);
        x.legacy->deleter(x.legacy);
        dlx_message_unref(x.m);
        dlx_observer_unref(x.o);
        dlx_subscription_unref(x.s);
        dlx_publisher_unref(x.p);
        dlx_client_unref(x.c);
        dlx_client_unref(dlx_test_stream_connect());
        _exit(0);
    }
    dlx_test_fork_join(pid);
    dlx_test_stream_check(x.m, 10, 1);
    dlx_test_stream_publish(x.p, 10, 2);
    dlx_test_stream_take(x.s, 2);
    end_all();
}

LOOP_TEST(a_path_that_is_no_socket, 0, 2)
{
    char words[300];
    const char *paths[] = {dlx_test_stream_daemon.dir, "/proc/self/cmdline"};
    const struct dlx_connect_args args = {.size = sizeof args, .socket = paths[_i]};
    struct dlx_client *c = NULL;
    (void)snprintf(words, sizeof words, "no dlpackd at %s: it is not a socket", paths[_i]);
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, words);
}

TEST(a_publisher_that_cannot_be)
{
    static const struct {
        struct dlx_publisher_args args;
        const char *words;
    } cases[] = {
        {{.size = 3}, "3 bytes"},
        {{.history = UINT32_MAX}, "history 4294967295 must be at most"},
        {{.depth = 4097}, "depth 4097 must be at most 4096"},
        {{.depth = UINT32_MAX}, "depth 4294967295"},
        {{.history = 2, .retain = 3}, "retain 3 must be at most the history, 2"},
        {{.on_full = DLX_ON_FULL_FAIL + 1}, "on_full 4 is none of"},
        {{.max_held = 4097}, "test/a: max_held 4097 must be at most 4096"},
        {{.max_held = UINT32_MAX, .max_held_bytes = 1}, "max_held 4294967295"},
        {{.retain_for_ns = 1}, "retain_for_ns without messages to retain"},
        {{.history = 4, .retain = 4, .retain_for_ns = -3}, "-3"},
    };
    struct dlx_publisher *p = NULL;
    auto_client *c = dlx_test_stream_connect();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        struct dlx_publisher_args args = cases[i].args;
        args.size = args.size ? args.size : sizeof args;
        fails(dlx_publisher_new(c, "test/a", &args, &p), DLX_E_INVALID, cases[i].words);
        ck_assert_ptr_null(p);
    }
}

TEST(a_subscription_that_cannot_be)
{
    static const struct {
        struct dlx_subscribe_args args;
        const char *words;
    } cases[] = {
        {{.max_held = UINT32_MAX}, "max_held 4294967295 must be at most"},
        {{.mode = DLX_MODE_LATEST + 1}, "mode 2"},
        {{.mode = DLX_MODE_LATEST, .reliable = true}, "it cannot be reliable"},
        {{.spin_ns = DLX_SPIN_ALWAYS - 1}, "spin_ns"},
    };
    struct dlx_subscription *s = NULL;
    auto_client *c = dlx_test_stream_connect();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        struct dlx_subscribe_args args = cases[i].args;
        args.size = sizeof args;
        fails(dlx_subscribe(c, "test/a", &args, &s), DLX_E_INVALID, cases[i].words);
        ck_assert_ptr_null(s);
    }
}

TEST(a_topic_that_cannot_be)
{
    char too_long[300];
    auto_client *c = dlx_test_stream_connect();
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    fails(dlx_publisher_new(c, "a b", NULL, &out.p), DLX_E_TOPIC, "' '");
    fails(dlx_publisher_new(c, "/a", NULL, &out.p), DLX_E_TOPIC, "begins with '/'");
    fails(dlx_publisher_new(c, too_long, NULL, &out.p), DLX_E_TOPIC, "255");
    fails(dlx_publisher_new(c, "cam/*", NULL, &out.p), DLX_E_TOPIC, "'*' at 4");
    fails(dlx_subscribe(c, "", NULL, &out.s), DLX_E_TOPIC, "empty");
    fails(dlx_subscribe(c, "a/**/b", NULL, &out.s), DLX_E_TOPIC, "last segment");
    fails(dlx_subscribe(c, "a b*", NULL, &out.s), DLX_E_TOPIC, "' ' at 1");
    fails(dlx_list_publishers(c, "a**", on_publisher, NULL), DLX_E_TOPIC, "last segment");
    fails(dlx_get(c, "a b", 0, &out.m), DLX_E_TOPIC, "a b");
    fails(dlx_drop_retained(c, "a b"), DLX_E_TOPIC, "a b");
    ck_assert(nothing_written());
    /* The daemon looks itself. */
    int control = dlx_test_hello(&dlx_test_stream_daemon, 10);
    Dlx__Wire__Subscribe request = DLX__WIRE__SUBSCRIBE__INIT;
    request.topic = (char *)(uintptr_t) "a/**/b";
    request.max_held = 1;
    (void)dlx_test_call_error(control, DLX__WIRE__PACKET__BODY_SUBSCRIBE, &request, DLX_E_TOPIC);
    close(control);
}

TEST(a_socket_path_that_is_no_socket_path)
{
    char path[200];
    struct dlx_client *c = NULL;
    const struct dlx_connect_args args = {.size = sizeof args, .socket = path};
    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    fails(dlx_connect(&args, &c), DLX_E_INVALID, "is longer than 107 bytes");
    memcpy(path, "/nonexistent/dlx.sock", sizeof "/nonexistent/dlx.sock");
    fails(dlx_connect(&args, &c), DLX_E_NO_DAEMON, path);
    ck_assert_ptr_null(c);
}

/* Nothing is allocated for what can never be, or of what cannot be carried. */
TEST(tensors_that_cannot_be)
{
    int64_t most[] = {INT64_MAX, 2}, large = INT64_MAX / 16, negative = -1, huge = INT64_C(1) << 45;
    const struct dlx_tensor_spec two[] = {INT64_SPEC(&large), INT64_SPEC(&large)};
    const DLDataType word = {kDLInt, 64, 1}, byte = {kDLInt, 8, 1};
    DLManagedTensorVersioned *t[3] = {NULL, NULL, NULL};
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    const struct dlx_tensor_spec *one = SPEC(.dtype = word, .ndim = 2, .shape = most);
    fails(dlx_alloc(pair.p, one, t), DLX_E_SHAPE, "2^63-1");
    fails(dlx_alloc_set(pair.p, one, 1, t), DLX_E_SHAPE, "");
    one = SPEC(.dtype = word, .ndim = 65, .shape = most);
    fails(dlx_alloc(pair.p, one, t), DLX_E_SHAPE, "65");
    one = SPEC(.dtype = byte, .ndim = 1, .shape = &negative);
    fails(dlx_alloc(pair.p, one, t), DLX_E_SHAPE, "-1");
    int r = dlx_alloc(pair.p, SPEC(.dtype = byte, .ndim = 1, .shape = &huge), t);
    ck_assert_msg(r == DLX_E_LIMIT || r == DLX_E_NO_MEMORY, "%d", r);
    ck_assert_ptr_nonnull(strstr(dlx_errmsg(), "bytes"));
    ck_assert_int_lt(dlx_alloc_set(pair.p, two, 2, t), 0);
    fails(dlx_alloc_set(pair.p, two, 0, t), DLX_E_INVALID, "0 tensors");
    fails(dlx_alloc_set(pair.p, two, DLX_TENSORS_MAX + 1, t), DLX_E_INVALID, "65536 tensors");
    ck_assert_ptr_null(t[0]);
    DLManagedTensorVersioned *own = dlx_test_stream_alloc(pair.p, 10, 1);
    static const DLDeviceType there[] = {kDLCUDA, kDLOpenCL, kDLMetal, kDLCUDAManaged};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(there); i++) {
        own->dl_tensor.device.device_type = there[i];
        fails(dlx_publish(pair.p, own, NULL, NULL), DLX_E_DEVICE, "device type");
    }
    own->version.major = 2;
    fails(dlx_publish(pair.p, own, NULL, NULL), DLX_E_VERSION, "2.0");
    own->version.major = DLPACK_MAJOR_VERSION;
    /* Of the host, pinned: this process reads it, by a copy. */
    static const DLDeviceType pinned[] = {kDLCUDAHost, kDLROCMHost};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(pinned); i++) {
        own->dl_tensor.device.device_type = pinned[i];
        ok(dlx_publish(pair.p, own, PUBLISH(.share = true), NULL));
        auto_message *m = dlx_test_stream_next(pair.s);
        dlx_test_stream_check(m, 10, 1);
        ck_assert_int_eq(dlx_message_tensor_peek(m, 0)->device.device_type, kDLCPU);
    }
    own->deleter(own);
}

/* Requests for parts that a message does not have. */
TEST(messages_have_no_more_than_they_have)
{
    auto_pair pair = dlx_test_pair_make(NULL, NULL);
    DLManagedTensorVersioned *none = NULL;
    DLManagedTensor *legacy = NULL;
    char name[DLX_NAME_MAX + 2];
    uint32_t at = 77;
    size_t size = 77;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    struct dlx_item items[] = {{.name = "one", .tensor = dlx_test_stream_alloc(pair.p, 10, 1)},
                               {.tensor = dlx_test_stream_alloc(pair.p, 10, 2)}};
    ok(dlx_publish_set(pair.p, items, 2, NULL, NULL, NULL));
    dlx_test_stream_publish(pair.p, 10, 3); /* no set: no names */
    auto_message *m = dlx_test_stream_next(pair.s), *plain = dlx_test_stream_next(pair.s);
    ck_assert_ptr_nonnull(dlx_message_tensor_peek(m, 1));
    ck_assert_ptr_null(dlx_message_tensor_peek(m, 2));
    ck_assert_ptr_null(dlx_message_tensor_peek(NULL, 0));
    ck_assert_str_eq(dlx_message_tensor_name(m, 1), "");
    ck_assert_ptr_null(dlx_message_tensor_name(m, 2));
    ck_assert_ptr_null(dlx_message_tensor_name(NULL, 0));
    ck_assert_ptr_null(dlx_message_meta(m, &size));
    ck_assert_uint_eq(size, 0);
    ok(dlx_message_tensor_find(m, "one", &at));
    ck_assert_uint_eq(at, 0);
    fails(dlx_message_tensor_find(m, "two", &at), DLX_E_NOT_FOUND, "\"two\"");
    fails(dlx_message_tensor_find(m, "", &at), DLX_E_NOT_FOUND, "no tensor");
    fails(dlx_message_tensor_find(m, name, &at), DLX_E_NOT_FOUND, "nnn");
    ck_assert_uint_eq(at, 0);
    fails(dlx_message_tensor(m, 2, &none), DLX_E_INVALID, "tensor 2");
    fails(dlx_message_tensor_private(m, 2, &none), DLX_E_INVALID, "tensor 2");
    fails(dlx_message_tensor_legacy(m, 2, true, &legacy), DLX_E_INVALID, "tensor 2");
    ck_assert(!none && !legacy);
    fails(dlx_message_tensor_find(plain, "one", &at), DLX_E_NOT_FOUND, "\"one\"");
}
