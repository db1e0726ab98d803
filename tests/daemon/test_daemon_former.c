/* SPDX-License-Identifier: Apache-2.0 */

/* Memory of earlier daemons that clients list in former pages: who pays for it, and until when. */

#include "common/memory.h"
#include "daemon/objects/connection.h"
#include "daemon/objects/former.h"
#include "daemon/objects/publisher_state.h"
#include "ring/layout.h"
#include "tests/daemon/harness_scene.h"
#include <sys/mman.h>

enum { OLD = 7, SIZE = 64 * DLX_PAGE, ROOM = 8 };

/* Of two users. */
static struct dlxd_client *writer, *reader;

static void set_up(void)
{
    writer = dlx_scene_client(0, 16);
    reader = dlx_scene_client(1, 16);
    writer->principal->minor = reader->principal->minor = DLX_PROTO_MINOR;
}

/* A former page that is being filled, or is ready: mapped until the test ends. */
struct page {
    struct dlxd_client *client;
    uint64_t *bytes;
    struct dlx_shm_former_region *regions;
    struct dlx_shm_former_source *sources;
    uint32_t n_regions, n_sources;
};

static struct page page_new(struct dlxd_client *client)
{
    struct page page = {.client = client};
    Dlx__Wire__FormerNew *request = WIRE(former_new, .n_regions = ROOM, .n_sources = ROOM);
    uint64_t size =
        dlx_scene_call_gets(client, request, BODY(FORMER_NEW_REPLY))->former_new_reply->page_size;
    ck_assert_uint_eq(size, dlx_shm_former_size(ROOM, ROOM));
    int fd = dlx_scene_take_fd(0);
    uint8_t *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    close(fd);
    page.bytes = (void *)map;
    page.regions = (void *)(map + dlx_shm_former_regions_at(ROOM));
    page.sources = (void *)(map + dlx_shm_former_sources_at(ROOM));
    return page;
}

static void page_source(struct page *page, uint64_t publisher, const char *topic, bool is_publisher)
{
    struct dlx_shm_former_source *source = &page->sources[page->n_sources++];
    source->publisher = publisher;
    source->is_publisher = is_publisher;
    (void)snprintf(source->topic, sizeof source->topic, "%s", topic);
}

/* Of the last source. Returns its index. */
static uint32_t page_region(struct page *page, uint64_t number, uint64_t bytes)
{
    uint32_t i = page->n_regions++;
    page->regions[i] =
        (struct dlx_shm_former_region){.region = number, .source = page->n_sources - 1};
    page->bytes[i] = bytes;
    return i;
}

static Dlx__Wire__FormerReady *ready(const struct page *page)
{
    static Dlx__Wire__FormerReady request;
    request = *WIRE(former_ready, .n_regions = page->n_regions, .n_sources = page->n_sources);
    return &request;
}

static void page_ready(const struct page *page)
{
    (void)dlx_scene_call_gets(page->client, ready(page), BODY(OK));
}

/* A ready page with one arena. */
static struct page keep(struct dlxd_client *client, uint32_t arena, uint64_t bytes,
                        bool is_publisher)
{
    struct page page = page_new(client);
    page_source(&page, OLD, "t", is_publisher);
    (void)page_region(&page, arena, bytes);
    page_ready(&page);
    return page;
}

static void look(void)
{
    writer->user->former_look_ns = reader->user->former_look_ns = 0;
    dlxd_former_look_all(&dlx_scene.broker);
}

static uint64_t used(const struct dlxd_client *client)
{
    return client->user->former_bytes;
}

static void expect(uint64_t of_writer, uint64_t of_reader)
{
    look();
    ck_assert_uint_eq(used(writer), of_writer);
    ck_assert_uint_eq(used(reader), of_reader);
    ck_assert_uint_eq(dlxd_users_former_bytes(&dlx_scene.broker.users), of_writer + of_reader);
}

TEST(a_region_that_a_client_lists_counts_until_it_is_cleared)
{
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    uint64_t others = writer->user->used[DLXD_BYTES];
    struct page page = page_new(writer);
    page_source(&page, OLD, "t", true);
    uint32_t control = page_region(&page, 0, DLX_PAGE), arena = page_region(&page, 1, SIZE);
    expect(0, 0); /* it may be half written */
    page_ready(&page);
    expect(SIZE + DLX_PAGE, 0);
    ck_assert_uint_eq(dlxd_user_used(writer->user, DLXD_BYTES, 0),
                      others + SIZE + DLX_PAGE + dlx_shm_former_size(ROOM, ROOM));
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 1);
    page.bytes[arena] = 0;
    expect(DLX_PAGE, 0);
    page.bytes[arena] = SIZE; /* it is not taken back */
    expect(DLX_PAGE, 0);
    page.bytes[control] = 2 * DLX_PAGE; /* nor grows */
    expect(DLX_PAGE, 0);
    page.bytes[control] = 16; /* of what did not fit, a part */
    expect(16, 0);
    page.bytes[control] = 0;
    expect(0, 0);
    ck_assert_uint_eq(writer->user->used[DLXD_BYTES], others);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds);
}

LOOP_TEST(a_region_that_two_list_counts_once_and_the_publisher_pays, 0, 2)
{
    struct page first = _i == 0 ? keep(writer, 1, SIZE, true) : keep(reader, 1, SIZE, false);
    struct page second = _i == 0 ? keep(reader, 1, SIZE, false) : keep(writer, 1, SIZE, true);
    const struct page *of_writer = _i == 0 ? &first : &second;
    const struct page *of_reader = _i == 0 ? &second : &first;
    expect(SIZE, 0);
    of_writer->bytes[0] = 0;
    expect(0, SIZE);
    of_reader->bytes[0] = 0;
    expect(0, 0);
}

TEST(subscribers_pay_one_after_the_other)
{
    struct page first = keep(reader, 1, SIZE, false);
    struct page second = keep(writer, 1, SIZE, false);
    expect(0, SIZE);
    first.bytes[0] = 0;
    expect(SIZE, 0);
    second.bytes[0] = 0;
    expect(0, 0);
}

/* Another size, topic, or role of a region: its liar's user pays. */
TEST(a_user_does_not_pay_for_claims_of_others)
{
    struct page honest = keep(writer, 1, SIZE, true);
    struct page lies = page_new(reader);
    page_source(&lies, OLD, "t", false);
    (void)page_region(&lies, 1, 1000 * (uint64_t)SIZE);
    page_source(&lies, OLD, "another", false);
    (void)page_region(&lies, 1, 8);
    page_ready(&lies);
    expect(SIZE, 8);
    struct page more = page_new(reader);
    page_source(&more, OLD, "t", true);
    (void)page_region(&more, 1, 1000 * (uint64_t)SIZE);
    page_ready(&more);
    expect(0, 1000 * (uint64_t)SIZE); /* who says that he is the publisher pays */
    more.bytes[0] = 0;
    expect(SIZE, 0);
    honest.bytes[0] = 0;
    expect(0, 0);
}

TEST(the_next_page_of_a_client_replaces_the_one_before)
{
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    (void)keep(writer, 1, SIZE, true);
    (void)keep(writer, 2, 3 * SIZE, true);
    expect(3 * SIZE, 0);
    (void)page_new(writer); /* not before it is ready */
    (void)page_new(writer);
    expect(3 * SIZE, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds + 2);
}

/* The process lives, and keeps it. */
TEST(kept_memory_counts_after_the_connection_has_ended)
{
    struct dlxd_client *other = dlx_scene_client(1, 16);
    other->principal->minor = DLX_PROTO_MINOR;
    struct page page = keep(other, 1, SIZE, false);
    (void)page_new(other); /* which no client will fill */
    dlxd_client_doom(other);
    dlxd_broker_settle(&dlx_scene.broker);
    expect(0, SIZE);
    page.bytes[0] = 0;
    expect(0, 0);
}

/* A daemon that has restored a publisher has its memory in its books. */
TEST(memory_that_the_daemon_knows_counts_when_its_publisher_is_freed)
{
    struct dlxd_publisher *publisher = dlx_scene_publisher(writer, "t");
    struct dlxd_arena *arena = dlx_scene_arena(publisher, SIZE);
    struct page page = page_new(reader);
    page_source(&page, dlxd_publisher_id(publisher), "t", false);
    (void)page_region(&page, 0, publisher->control->size);
    (void)page_region(&page, arena->id, SIZE);
    (void)page_region(&page, 1000, DLX_PAGE); /* which it does not know */
    uint64_t control = publisher->control->size;
    page_ready(&page);
    expect(0, DLX_PAGE);
    (void)dlxd_publisher_end(publisher);
    dlxd_broker_settle(&dlx_scene.broker);
    expect(0, DLX_PAGE + SIZE + control);
    page.bytes[0] = page.bytes[1] = page.bytes[2] = 0;
    expect(0, 0);
}

TEST(a_claims_page_that_the_daemon_knows_counts_when_its_group_ends)
{
    int link_sock, sock;
    struct dlxd_publisher *publisher = dlx_scene_publisher_linked(writer, "t", &link_sock);
    struct dlxd_subscription *s = dlx_scene_subscription(
        reader, "t", SUBSCRIPTION_CONFIG(.max_held = 1, .group = "g", .max_attempts = 5), &sock);
    ck_assert_uint_eq(dlx_scene_subscribed(s), 1);
    dlxd_broker_settle(&dlx_scene.broker);
    struct dlx_shm_link *link = dlx_scene_accept(sock, dlx_scene_expect(sock, BODY(LINK_OFFER)));
    dlx_store64_sc(&link->cursor, DLX_SHM_CURSOR_CLOSED); /* it will not drain */
    dlx_test_broker_run(&dlx_scene);
    (void)dlx_scene_expect(sock, BODY(LINK_OPEN));
    dlx_cleanup(dlx__closep) int fd = dlx_scene_take_fd(2);
    uint64_t inode = dlx__region_inode(fd);
    struct page page = page_new(reader);
    page_source(&page, dlxd_publisher_id(publisher), "t", false);
    (void)page_region(&page, dlx_shm_former_claims(inode), 2 * DLX_PAGE);
    (void)page_region(&page, dlx_shm_former_claims(inode + 1), DLX_PAGE); /* of another one */
    page_ready(&page);
    expect(0, DLX_PAGE);
    dlxd_subscription_free(s);
    dlxd_broker_settle(&dlx_scene.broker);
    expect(0, 3 * DLX_PAGE);
    page.bytes[0] = page.bytes[1] = 0;
    expect(0, 0);
}

/* ---- limits -------------------------------------------------------------------------------- */

static int grow(struct dlxd_publisher *publisher, uint64_t size)
{
    struct dlxd_arena *arena;
    int fd = -1;
    int r = dlxd_publisher_arena_new(publisher, size, &arena, &fd);
    dlx__close(fd);
    if (r == 0)
        ok(dlxd_publisher_arena_drop(publisher, arena->id));
    return r;
}

TEST(payloads_are_refused_while_former_ones_fill_the_quota)
{
    struct dlxd_publisher *p = dlx_scene_publisher(writer, "t");
    struct dlxd_publisher *of_reader = dlx_scene_publisher(reader, "u");
    uint64_t *max = &dlx_scene.broker.users.max[DLXD_BYTES];
    *max = writer->user->used[DLXD_BYTES] + dlx_shm_former_size(ROOM, ROOM) + 2 * SIZE;
    ok(grow(p, 2 * SIZE));
    struct page page = keep(writer, 1, SIZE, false);
    ok(grow(p, SIZE));
    fails(grow(p, SIZE + DLX_PAGE), DLX_E_LIMIT,
          "keep 256.0 KiB from before dlpackd was restarted");
    ok(grow(of_reader, SIZE + DLX_PAGE));
    /* A returning publisher exists beside it: else it could never let go of it. */
    Dlx__Wire__PublisherNew back = dlx_scene_publisher_new("t");
    back.resumes = OLD;
    uint64_t id = dlx_scene_call_gets(writer, &back, BODY(PUBLISHER_NEW_REPLY))
                      ->publisher_new_reply->publisher;
    ok(grow(dlxd_publisher_find(writer, id), SIZE + DLX_PAGE));
    page.bytes[0] = 0; /* the daemon has not looked since */
    writer->user->former_look_ns = 0;
    ok(grow(p, SIZE + DLX_PAGE));
}

/* Nothing proves what a client says. */
TEST(claims_of_a_client_take_nothing_from_others)
{
    struct page page = page_new(reader);
    page_source(&page, OLD, "t", false);
    (void)page_region(&page, 1, UINT64_C(1) << 60);
    page_ready(&page);
    expect(0, UINT64_C(1) << 60);
    struct dlxd_publisher *p = dlx_scene_publisher(writer, "t");
    ok(grow(p, SIZE));
    uint64_t all = dlx_scene.broker.users.all_bytes;
    page.bytes[0] = 0;
    expect(0, 0);
    ck_assert_uint_eq(dlx_scene.broker.users.all_bytes,
                      all - dlx_shm_former_size(ROOM, ROOM)); /* of the page itself alone */
}

LOOP_TEST(pages_that_make_no_sense_are_refused_and_change_nothing, 0, 6)
{
    static const char *const words[] = {
        "source 0",    "region 0 of a former page is of source 9 (of 1)",
        "more than 1", "there is room for 8 of 8",
        "room for 8",  "with 0 regions",
    };
    size_t n_fds = dlx_test_broker_n_fds(&dlx_scene);
    struct page page = page_new(reader);
    page_source(&page, OLD, _i == 0 ? "a//b" : "t", false);
    (void)page_region(&page, 1, SIZE);
    if (_i == 1)
        page.regions[0].source = 9;
    if (_i == 2)
        page.bytes[0] = (UINT64_C(1) << 60) + 1;
    if (_i == 3)
        page.n_regions = ROOM + 1;
    if (_i == 4)
        page.n_sources = ROOM + 1;
    if (_i == 5)
        page.n_regions = 0;
    dlx_scene_call_fails(reader, ready(&page), _i == 2 ? DLX_E_LIMIT : DLX_E_PROTOCOL, words[_i]);
    expect(0, 0);
    ck_assert_uint_eq(dlx_test_broker_n_fds(&dlx_scene), n_fds);
    dlx_scene_call_fails(reader, ready(&page), DLX_E_NOT_FOUND, "no former page");
}

TEST(two_clients_together_cannot_make_sums_overflow)
{
    struct page page = page_new(reader);
    page_source(&page, OLD, "t", false);
    (void)page_region(&page, 1, UINT64_C(1) << 59);
    (void)page_region(&page, 2, UINT64_C(1) << 59);
    page_ready(&page);
    struct dlxd_client *other = dlx_scene_client(1, 16);
    other->principal->minor = DLX_PROTO_MINOR;
    struct page more = page_new(other);
    page_source(&more, OLD, "t", false);
    (void)page_region(&more, 1, 1); /* also what another pays */
    dlx_scene_call_fails(other, ready(&more), DLX_E_LIMIT, "say that they keep more than");
    expect(0, UINT64_C(1) << 60);
}

TEST(pages_of_impossible_sizes_are_refused)
{
    dlx_scene_call_fails(reader, WIRE(former_new, .n_regions = 0, .n_sources = 1), DLX_E_INVALID,
                         "from 1 to 4096 of 1 to 1024");
    dlx_scene_call_fails(reader, WIRE(former_new, .n_regions = 1, .n_sources = 0), DLX_E_INVALID,
                         "0 sources");
    dlx_scene_call_fails(reader, WIRE(former_new, .n_regions = 4097, .n_sources = 1), DLX_E_INVALID,
                         "4097");
    dlx_scene_call_fails(reader, WIRE(former_new, .n_regions = 1, .n_sources = 1025), DLX_E_INVALID,
                         "1025");
}

/* ---- lists --------------------------------------------------------------------------------- */

static const Dlx__Wire__PublisherList *list_gone(struct dlxd_client *client)
{
    Dlx__Wire__ListPublishers *list = WIRE(list_publishers, .topic = (char *)"**", .gone = true);
    return dlx_scene_call_gets(client, list, BODY(PUBLISHER_LIST))->publisher_list;
}

TEST(lists_show_what_is_kept_and_by_whom)
{
    struct page of_writer = page_new(writer);
    page_source(&of_writer, OLD, "t", true);
    (void)page_region(&of_writer, 0, DLX_PAGE);
    (void)page_region(&of_writer, 1, SIZE);
    page_ready(&of_writer);
    struct page of_reader = keep(reader, 1, SIZE, false);
    const Dlx__Wire__PublisherList *list = list_gone(writer);
    ck_assert_uint_eq(list->n_entries, 1);
    const Dlx__Wire__PublisherEntry entry = *list->entries[0];
    ck_assert_uint_eq(entry.former, OLD);
    ck_assert_str_eq(entry.topic, "t");
    ck_assert_uint_eq(entry.arena_bytes, SIZE);
    ck_assert_uint_eq(entry.control_bytes, DLX_PAGE);
    ck_assert_uint_eq(entry.n_arenas, 1);
    ck_assert_uint_eq(entry.n_subscribers, 1);
    ck_assert_uint_eq(entry.pid, (uint32_t)writer->pid);
    Dlx__Wire__ListLinks *links = WIRE(list_links, .publisher = entry.publisher);
    const Dlx__Wire__LinkList *page =
        dlx_scene_call_gets(writer, links, BODY(LINK_LIST))->link_list;
    ck_assert_uint_eq(page->n_entries, 2);
    ck_assert(page->entries[0]->is_publisher && !page->entries[1]->is_publisher);
    ck_assert_uint_eq(page->entries[0]->former_bytes, SIZE + DLX_PAGE);
    ck_assert_uint_eq(page->entries[1]->former_bytes, SIZE);
    ck_assert_uint_eq(page->entries[1]->pid, (uint32_t)reader->pid);
    links->after_link = page->entries[0]->link;
    page = dlx_scene_call_gets(writer, links, BODY(LINK_LIST))->link_list;
    ck_assert_uint_eq(page->n_entries, 1);
    const Dlx__Wire__DaemonInfoReply *info =
        dlx_scene_call_gets(writer, WIRE(daemon_info), BODY(DAEMON_INFO_REPLY))->daemon_info_reply;
    ck_assert_uint_eq(info->former_bytes, SIZE + DLX_PAGE);
    ck_assert_uint_eq(info->shared_bytes, dlx_scene.broker.users.all_bytes + SIZE + DLX_PAGE);
    /* An older library knows no such entries. */
    writer->principal->minor = 7;
    ck_assert_uint_eq(list_gone(writer)->n_entries, 0);
    dlx_scene_call_fails(writer, links, DLX_E_NOT_FOUND, "there is no publisher");
    writer->principal->minor = DLX_PROTO_MINOR;
    of_writer.bytes[0] = of_writer.bytes[1] = of_reader.bytes[0] = 0;
    look();
    ck_assert_uint_eq(list_gone(writer)->n_entries, 0);
}

/* In the order in which they went, beside publishers of this daemon that have gone. */
TEST(long_lists_of_both_kinds_are_complete)
{
    enum { N = 40 };
    for (int i = 0; i < N; i++) {
        struct dlxd_client *client = dlx_scene_client(1, 16);
        client->principal->minor = DLX_PROTO_MINOR;
        struct page page = page_new(client);
        page_source(&page, OLD + (uint64_t)i, "t", false);
        (void)page_region(&page, 1, SIZE);
        page_ready(&page);
    }
    Dlx__Wire__ListPublishers *list = WIRE(list_publishers, .topic = (char *)"**", .gone = true);
    const Dlx__Wire__PublisherList *page;
    size_t n = 0;
    do {
        page = dlx_scene_call_gets(writer, list, BODY(PUBLISHER_LIST))->publisher_list;
        for (size_t i = 0; i < page->n_entries; i++) {
            ck_assert_uint_eq(page->entries[i]->former, OLD + n++);
            list->after_gone = page->entries[i]->gone;
            list->after_publisher = page->entries[i]->publisher;
        }
    } while (page->more);
    ck_assert_uint_eq(n, N);
}

TEST(the_end_of_the_daemon_ends_what_is_kept)
{
    (void)keep(writer, 1, SIZE, true);
    (void)keep(reader, 1, SIZE, false);
    dlxd_former_clear(&dlx_scene.broker);
    expect(0, 0);
}

int main(void)
{
    return dlx_test_run_case(dlx_scene_case("former", set_up));
}
