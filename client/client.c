/* SPDX-License-Identifier: Apache-2.0 */
#include "client/client.h"
#include "client/call.h"
#include "client/connect.h"
#include <string.h>
#include <sys/prctl.h>

#define DEFAULT_TIMEOUT_NS INT64_C(5000000000)
#define NAME_MAX_SIZE      63U

const char *dlx_strerror(int code)
{
    return dlx__error_text(code);
}

const char *dlx_error_name(int code)
{
    return dlx__error_name(code);
}

const char *dlx_client_errmsg(const struct dlx_client *c)
{
    (void)c; /* the message is the thread's */
    return dlx__error_message();
}

#define TEXT_OF(x)   #x
#define NUMBER_OF(x) TEXT_OF(x)

const char *dlx_version(void)
{
    return NUMBER_OF(DLX_VERSION_MAJOR) "." NUMBER_OF(DLX_VERSION_MINOR) "." NUMBER_OF(
        DLX_VERSION_PATCH);
}

int dlx__name_null(int code, const char *call, const struct dlx_argument *arguments, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!arguments[i].value)
            return dlx__fail(DLX_E_INVALID, "%s: %s is NULL", call, arguments[i].name);
    return code;
}

/* ---- argument structs ---------------------------------------------------------------------- */

int dlx__args_convert(void *dst, size_t dst_size, size_t min, const void *args)
{
    size_t size;
    memset(dst, 0, dst_size);
    if (!args)
        return 0;
    memcpy(&size, args, sizeof size);
    if (size < min)
        return dlx__fail(DLX_E_INVALID,
                         "argument struct of %zu bytes, at least %zu are needed: is `size` set?",
                         size, min);
    for (size_t i = dst_size; i < size; i++)
        if (((const uint8_t *)args)[i] != 0)
            return dlx__fail(
                DLX_E_INVALID,
                "argument struct of %zu bytes uses fields that libdlx %s does not know", size,
                dlx_version());
    memcpy(dst, args, DLX_MIN(size, dst_size));
    return 0;
}

int dlx__args_check_result(const void *result, size_t min)
{
    size_t size;
    memcpy(&size, result, sizeof size);
    if (size >= min)
        return 0;
    return dlx__fail(DLX_E_INVALID,
                     "result struct of %zu bytes, at least %zu are needed: is `size` set?", size,
                     min);
}

int dlx__args_return(void *dst, size_t min, const void *src, size_t src_size)
{
    size_t size;
    memcpy(&size, dst, sizeof size);
    int r = dlx__args_check_result(dst, min);
    if (r < 0)
        return r;
    size_t n = DLX_MIN(size, src_size);
    memcpy((uint8_t *)dst + sizeof size, (const uint8_t *)src + sizeof size, n - sizeof size);
    return 0;
}

/* ---- connect ------------------------------------------------------------------------------- */

static void client_free(struct dlx_client *c)
{
    dlx__close(c->sock);
    dlx__call_free(c->call);
    dlx__peers_deinit(&c->peers);
    free(c);
}

int dlx_connect(struct dlx_client **ret, const struct dlx_connect_args *user_args)
{
    struct dlx_connect_args args;
    uint64_t generation;
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_connect: ret is NULL");
    int r = dlx__args_copy(&args, sizeof args, sizeof args, user_args);
    if (r == 0 && args.name && strlen(args.name) > NAME_MAX_SIZE)
        r = dlx__fail(DLX_E_INVALID, "client name of %zu bytes, at most %u are possible",
                      strlen(args.name), NAME_MAX_SIZE);
    if (r == 0 && args.autospawn > DLX_AUTOSPAWN_NEVER)
        r = dlx__fail(DLX_E_INVALID, "autospawn is %u, no value of enum dlx_autospawn",
                      args.autospawn);
    if (r == 0)
        r = dlx__fork_init(&generation);
    if (r < 0)
        return r;
    struct dlx_client *c = calloc(1, sizeof *c);
    if (!c || dlx__lock_init(&c->lock) != 0) {
        free(c);
        return dlx__fail(DLX_E_NO_MEMORY, "state of a connection");
    }
    atomic_init(&c->refs, 1);
    c->generation = generation;
    c->sock = -1;
    c->timeout_ns = args.timeout_ns ? args.timeout_ns : DEFAULT_TIMEOUT_NS;
    c->wait_ns = args.wait_ns;
    c->interrupt = args.interrupt;
    c->interrupt_data = args.interrupt_data;
    dlx__peers_init(&c->peers);
    if (args.name)
        memcpy(c->name, args.name, strlen(args.name) + 1);
    else
        prctl(PR_GET_NAME, c->name); /* at most 16 bytes, terminated */
    r = dlx__connect(c, args.socket, args.autospawn);
    if (r < 0) {
        client_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

enum dlx_daemon_place dlx_client_place(const struct dlx_client *c)
{
    return (enum dlx_daemon_place)c->path_kind;
}

const char *dlx_client_passed_over(const struct dlx_client *c)
{
    return c->passed_over;
}

struct dlx_client *dlx__client_ref(struct dlx_client *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

struct dlx_client *dlx_client_unref(struct dlx_client *c)
{
    if (!c || dlx__forked(c->generation))
        return NULL;
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        client_free(c);
    return NULL;
}
