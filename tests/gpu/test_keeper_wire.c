/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of the GPU keeper: what is sent arrives, and nothing that a peer may send is trusted. */
#include "tests/harness/keeper.h"
#include "tests/harness/random.h"
#include "tests/harness/run.h"

static int pair[2];
static struct dlx_packet packet;
static struct dlx_keeper_packet got;

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void teardown(void)
{
    dlx__packet_deinit(&packet);
    pair[0] = dlx__close(pair[0]);
    pair[1] = dlx__close(pair[1]);
}

static int pass(const struct dlx_keeper_packet *sent, size_t n_fds)
{
    const int fds[] = {pair[0], pair[0], pair[0]};
    dlx__packet_deinit(&packet);
    ck_assert_int_eq(dlx__keeper_send(pair[0], sent, fds, n_fds), 0);
    ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), 0);
    return dlx__keeper_decode(&packet, &got);
}

TEST(every_kind_arrives_with_its_fields)
{
    static const uint8_t part[] = "part";
    uint8_t claims[2 * DLX_KEEPER_CLAIM_SIZE];
    dlx__keeper_put_claim(claims, 11, 1000);
    dlx__keeper_put_claim(claims + DLX_KEEPER_CLAIM_SIZE, UINT64_MAX, UINT64_MAX - 5);
    uint8_t device[DLX_KEEPER_DEVICE_SIZE];
    const struct dlx_keeper_device gpu = {.type = -2, .uuid = {1, 2, [15] = 16}};
    dlx__keeper_put_device(device, &gpu);
    const struct {
        struct dlx_keeper_packet packet;
        size_t n_fds;
    } cases[] = {
        {{.kind = DLX_KEEPER_ALLOCATE,
          .serial = 7,
          .origin = UINT64_MAX,
          .allocation = UINT64_MAX - 1,
          .user = UINT64_MAX - 2,
          .number = UINT64_MAX - 3,
          .body = device,
          .body_size = sizeof device},
         1},
        {{.kind = DLX_KEEPER_GET, .serial = 1, .origin = 1, .allocation = 2, .user = 3}, 0},
        {{.kind = DLX_KEEPER_FREE, .origin = 1, .allocation = 2, .user = 3}, 0},
        {{.kind = DLX_KEEPER_FORGET, .origin = 1, .user = 3}, 0},
        {{.kind = DLX_KEEPER_CLAIM, .body = claims, .body_size = sizeof claims}, 0},
        {{.kind = DLX_KEEPER_CLAIMED}, 0},
        {{.kind = DLX_KEEPER_MEMORY,
          .serial = UINT32_MAX,
          .number = 4,
          .body = part,
          .body_size = 4},
         1},
        {{.kind = DLX_KEEPER_REFUSAL, .serial = 1, .code = -3, .body = part, .body_size = 4}, 0},
        {{.kind = DLX_KEEPER_KEPT, .origin = 1, .user = 3, .number = 4}, 0},
        {{.kind = DLX_KEEPER_ASK, .allocation = 2}, 1},
        {{.kind = DLX_KEEPER_PART, .body = part, .body_size = 4}, 2},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        const struct dlx_keeper_packet *sent = &cases[i].packet;
        ck_assert_msg(pass(sent, cases[i].n_fds) == 0, "%zu: %s", i, dlx__error_message());
        ck_assert_int_eq(got.kind, sent->kind);
        ck_assert_uint_eq(got.serial, sent->serial);
        ck_assert_uint_eq(got.origin, sent->origin);
        ck_assert_uint_eq(got.allocation, sent->allocation);
        ck_assert_uint_eq(got.user, sent->user);
        ck_assert_uint_eq(got.number, sent->number);
        ck_assert_int_eq(got.code, sent->code);
        ck_assert_uint_eq(got.body_size, sent->body_size);
        if (sent->body_size > 0)
            ck_assert_mem_eq(got.body, sent->body, sent->body_size);
        if (sent->kind == DLX_KEEPER_ALLOCATE) {
            const struct dlx_keeper_device same = dlx__keeper_device(&got);
            ck_assert_int_eq(same.type, gpu.type);
            ck_assert_mem_eq(same.uuid, gpu.uuid, sizeof gpu.uuid);
        }
        if (sent->kind == DLX_KEEPER_CLAIM) {
            uint64_t origin, user;
            ck_assert_uint_eq(dlx__keeper_n_claims(&got), 2);
            dlx__keeper_claim(&got, 1, &origin, &user);
            ck_assert_uint_eq(origin, UINT64_MAX);
            ck_assert_uint_eq(user, UINT64_MAX - 5);
        }
    }
}

/* Refuses a right packet with one wrong byte. */
static void refuses(const struct dlx_keeper_packet *right, size_t n_fds, size_t at, uint8_t value,
                    int code, const char *word)
{
    ck_assert_int_eq(pass(right, n_fds), 0);
    packet.data[at] = value;
    fails(dlx__keeper_decode(&packet, &got), code, word);
}

TEST(each_wrong_field_is_refused_by_its_name)
{
    uint8_t claim[DLX_KEEPER_CLAIM_SIZE], device[DLX_KEEPER_DEVICE_SIZE] = {0};
    const struct dlx_keeper_packet allocate = {.kind = DLX_KEEPER_ALLOCATE,
                                               .serial = 1,
                                               .origin = 1,
                                               .allocation = 1,
                                               .body = device,
                                               .body_size = sizeof device};
    const struct dlx_keeper_packet ask = {.kind = DLX_KEEPER_ASK, .allocation = 1};
    const struct dlx_keeper_packet refusal = {
        .kind = DLX_KEEPER_REFUSAL, .code = -1, .body = (const uint8_t *)"words", .body_size = 5};
    const struct dlx_keeper_packet claims = {
        .kind = DLX_KEEPER_CLAIM, .body = claim, .body_size = sizeof claim};
    dlx__keeper_put_claim(claim, 1, 0);
    refuses(&allocate, 1, 0, 1, DLX_E_VERSION, "version 1");
    refuses(&allocate, 1, 1, 0, DLX_E_PROTOCOL, "kind");
    refuses(&allocate, 1, 1, 12, DLX_E_PROTOCOL, "kind");
    refuses(&allocate, 1, 2, 1, DLX_E_PROTOCOL, "reserved");
    refuses(&allocate, 1, 44, 1, DLX_E_PROTOCOL, "reserved");
    refuses(&allocate, 1, 8, 0, DLX_E_PROTOCOL, "origin");
    refuses(&allocate, 1, 16, 0, DLX_E_PROTOCOL, "allocation");
    refuses(&allocate, 1, 40, 1, DLX_E_PROTOCOL, "code");
    refuses(&ask, 1, 4, 1, DLX_E_PROTOCOL, "serial");
    refuses(&ask, 1, 8, 1, DLX_E_PROTOCOL, "origin");
    refuses(&ask, 1, 16, 0, DLX_E_PROTOCOL, "allocation");
    refuses(&ask, 1, 31, 1, DLX_E_PROTOCOL, "user");
    refuses(&ask, 1, 32, 1, DLX_E_PROTOCOL, "number");
    refuses(&refusal, 0, 16, 1, DLX_E_PROTOCOL, "allocation");
    refuses(&refusal, 0, 43, 0, DLX_E_PROTOCOL, "code");
    refuses(&refusal, 0, 50, 0, DLX_E_PROTOCOL, "text");
    refuses(&claims, 0, 48, 0, DLX_E_PROTOCOL, "origin");
}

TEST(wrong_sizes_and_numbers_of_descriptors_are_refused)
{
    static uint8_t body[DLX_KEEPER_BODY_MAX + 1];
    memset(body, 'x', sizeof body);
    const struct {
        struct dlx_keeper_packet packet;
        size_t n_fds;
    } refused[] = {
        {{.kind = DLX_KEEPER_ASK, .allocation = 1}, 0},
        {{.kind = DLX_KEEPER_ASK, .allocation = 1}, 2},
        {{.kind = DLX_KEEPER_MEMORY, .body = body, .body_size = 1}, 0},
        {{.kind = DLX_KEEPER_MEMORY, .body = body}, 1},
        {{.kind = DLX_KEEPER_GET, .origin = 1, .allocation = 1}, 1},
        {{.kind = DLX_KEEPER_KEPT, .origin = 1, .body = body, .body_size = 1}, 0},
        {{.kind = DLX_KEEPER_PART, .body = body}, 1},
        {{.kind = DLX_KEEPER_ALLOCATE,
          .origin = 1,
          .allocation = 1,
          .body = body,
          .body_size = DLX_KEEPER_DEVICE_SIZE + 1},
         1},
        {{.kind = DLX_KEEPER_REFUSAL, .code = -1, .body = body, .body_size = DLX_ERROR_TEXT_SIZE},
         0},
        {{.kind = DLX_KEEPER_CLAIM, .body = body, .body_size = DLX_KEEPER_CLAIM_SIZE - 1}, 0},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(refused); i++)
        ck_assert_msg(pass(&refused[i].packet, refused[i].n_fds) == DLX_E_PROTOCOL, "row %zu", i);
    struct dlx_keeper_packet sent = {.kind = DLX_KEEPER_CLAIM, .body = body};
    sent.body_size = DLX_KEEPER_CLAIM_SIZE * (DLX_KEEPER_CLAIMS_MAX + 1);
    memset(body, 0, sizeof body);
    for (size_t i = 0; i < sent.body_size; i += DLX_KEEPER_CLAIM_SIZE)
        dlx__keeper_put_claim(body + i, 1, 1);
    ck_assert_int_eq(pass(&sent, 0), DLX_E_PROTOCOL);
    sent.body_size -= DLX_KEEPER_CLAIM_SIZE;
    ck_assert_int_eq(pass(&sent, 0), 0);
    sent.body_size = sizeof body;
    ck_assert_int_eq(dlx__keeper_send(pair[0], &sent, NULL, 0), DLX_E_PROTOCOL);
    for (size_t size = 1; size < DLX_KEEPER_HEADER_SIZE; size++) {
        packet.size = size;
        ck_assert_int_eq(dlx__keeper_decode(&packet, &got), DLX_E_PROTOCOL);
    }
}

/* Bytes by chance: whatever is accepted is within the packet. */
TEST(random_packets_are_refused_or_whole)
{
    uint64_t random = 1;
    for (uint32_t i = 0; i < 200000; i++) {
        packet.n_fds = 0;
        packet.size = 1 + dlx_test_random(&random) % 300;
        for (size_t k = 0; k < packet.size; k++)
            packet.data[k] = dlx_test_random(&random) % 4 ? 0 : (uint8_t)dlx_test_random(&random);
        packet.data[0] = DLX_KEEPER_VERSION;
        packet.data[1] = (uint8_t)(dlx_test_random(&random) % 13);
        if (dlx__keeper_decode(&packet, &got) == 0) {
            ck_assert_ptr_eq(got.body, packet.data + DLX_KEEPER_HEADER_SIZE);
            ck_assert_uint_eq(got.body_size, packet.size - DLX_KEEPER_HEADER_SIZE);
        }
    }
}

TEST(a_code_comes_with_its_words)
{
    ck_assert_int_eq(dlx__keeper_refuse(pair[0], 5, DLX_E_LIMIT, "too many"), 0);
    ck_assert_int_eq(dlx__packet_recv_fds(pair[1], &packet), 0);
    ck_assert_int_eq(dlx__keeper_decode(&packet, &got), 0);
    ck_assert_uint_eq(got.serial, 5);
    ck_assert_int_eq(dlx__keeper_fail(&got), DLX_E_LIMIT);
    ck_assert_str_eq(dlx__error_message(), "too many");
    got.body_size = 0; /* a code without words has those of the code */
    ck_assert_int_eq(dlx__keeper_fail(&got), DLX_E_LIMIT);
    ck_assert_str_eq(dlx__error_message(), dlx__error_text(DLX_E_LIMIT));
}

int main(void)
{
    TCase *tcase = tcase_create("keeper_wire");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
