/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a stream's thread for each operation. */
#include "tests/gpu/standin/machine.h"
#include <stdlib.h>
#include <string.h>

/* The allocations that a kernel has pinned by standin_load() and standin_store(), until it ends. */
#define MAX_PINS 64
static _Thread_local struct range *pins[MAX_PINS];
static _Thread_local int n_pins;
static _Thread_local struct stream *kernel_stream; /* of the kernel that runs on this thread */

static bool is_over(const struct stream *s)
{
    return s->context->sticky != CUDA_SUCCESS || s->context->is_destroyed;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

struct operand {
    struct range *pin; /* NULL: the host's */
    char *p;
    size_t size; /* how far it reaches */
};

static bool operand_pin(const struct stream *s, CUdeviceptr address, const void *host,
                        size_t offset, bool is_write, struct operand *ret)
{
    if (address == 0) {
        *ret = (struct operand){.p = (char *)(uintptr_t)host + offset, .size = SIZE_MAX};
        return true;
    }
    struct range *r = range_pin(address + offset, s->context, is_write);
    if (!r)
        return false;
    CUdeviceptr at = address + offset - r->base;
    *ret = (struct operand){.pin = r, .p = r->shadow + at, .size = r->size - at};
    return true;
}

static void operand_unpin(struct operand *o)
{
    if (o->pin)
        range_unpin(o->pin);
}

/* Mappings that adjoin each other are copied across. */
static bool copy_or_fill(const struct stream *s, const struct op *op)
{
    const void *host_src = op->staged ? op->staged : op->host_src;
    for (size_t done = 0, n; done < op->size; done += n) {
        struct operand dst, src = {.size = SIZE_MAX};
        if (!operand_pin(s, op->dst, op->host_dst, done, true, &dst))
            return false;
        if (op->kind == OP_COPY && !operand_pin(s, op->src, host_src, done, false, &src)) {
            operand_unpin(&dst);
            return false;
        }
        n = least(op->size - done, least(dst.size, src.size));
        pthread_mutex_unlock(&state.lock);
        if (op->kind == OP_COPY)
            memmove(dst.p, src.p, n);
        else
            for (size_t i = 0; i < n; i++)
                dst.p[i] = (char)(op->value >> (done + i) % op->width * 8);
        pthread_mutex_lock(&state.lock);
        operand_unpin(&dst);
        operand_unpin(&src);
    }
    return true;
}

static bool word_satisfies(const struct op *op, const void *p)
{
    uint64_t value = op->value, word;
    int64_t difference;
    if (op->width == 8) {
        word = atomic_load_explicit((const _Atomic uint64_t *)p, memory_order_acquire);
        difference = (int64_t)(word - value);
    } else {
        word = atomic_load_explicit((const _Atomic uint32_t *)p, memory_order_acquire);
        difference = (int32_t)((uint32_t)word - (uint32_t)value);
    }
    switch (op->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return difference >= 0; /* cyclic */
    case CU_STREAM_WAIT_VALUE_EQ:
        return difference == 0;
    case CU_STREAM_WAIT_VALUE_AND:
        return (word & value) != 0;
    default:
        return op->width == 8 ? ~(word | value) != 0 : (uint32_t) ~(word | value) != 0;
    }
}

static bool word_op(const struct stream *s, const struct op *op)
{
    struct operand o;
    if (!operand_pin(s, op->dst, NULL, 0, op->kind == OP_WRITE_VALUE, &o))
        return false;
    if (op->kind == OP_WAIT_VALUE) {
        while ((atomic_load(&waits_are_stuck) || !word_satisfies(op, o.p)) && !is_over(s))
            wait_change();
    } else if (op->width == 8) {
        atomic_store_explicit((_Atomic uint64_t *)(void *)o.p, op->value, memory_order_release);
    } else {
        atomic_store_explicit((_Atomic uint32_t *)(void *)o.p, (uint32_t)op->value,
                              memory_order_release);
    }
    operand_unpin(&o);
    return true;
}

static void call_out(struct stream *s, const struct op *op)
{
    in_callback = true;
    kernel_stream = op->kind == OP_KERNEL ? s : NULL;
    pthread_mutex_unlock(&state.lock);
    if (op->kind == OP_KERNEL)
        op->kernel(op->arg);
    else
        op->function(op->arg);
    pthread_mutex_lock(&state.lock);
    in_callback = false;
    kernel_stream = NULL;
    while (n_pins > 0)
        range_unpin(pins[--n_pins]);
}

static void *kernel_access(CUdeviceptr address, size_t size, bool is_write)
{
    struct stream *s = kernel_stream;
    if (!s || n_pins == MAX_PINS)
        return NULL;
    pthread_mutex_lock(&state.lock);
    struct range *r = range_pin(address, s->context, is_write);
    char *p = NULL;
    if (r && size <= r->size - (address - r->base)) {
        p = r->shadow + (address - r->base);
        pins[n_pins++] = r;
    } else {
        if (r)
            range_unpin(r);
        context_poison(s->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    pthread_mutex_unlock(&state.lock);
    return p;
}

const void *standin_load(CUdeviceptr address, size_t size)
{
    return kernel_access(address, size, false);
}

void *standin_store(CUdeviceptr address, size_t size)
{
    return kernel_access(address, size, true);
}

void op_run(struct stream *s, struct op *op)
{
    bool is_legal = true;
    switch (op->kind) {
    case OP_COPY:
    case OP_FILL:
        is_legal = copy_or_fill(s, op);
        break;
    case OP_HOST_FUNCTION:
    case OP_KERNEL:
        call_out(s, op);
        break;
    case OP_WAIT_VALUE:
    case OP_WRITE_VALUE:
        is_legal = word_op(s, op);
        break;
    case OP_RECORD:
        event_reach(op->event, op->value);
        break;
    case OP_WAIT_EVENT:
        while (!event_is_reached(op->event, op->value) && !is_over(s))
            wait_change();
        break;
    case OP_WAIT_STREAM:
        while (op->stream->completed < op->value && !is_over(s))
            wait_change();
        break;
    case OP_FREE:
        range_remove(op->range);
        break;
    }
    if (!is_legal)
        context_poison(s->context, CUDA_ERROR_ILLEGAL_ADDRESS);
}
