/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/lib/pin.h"
#include "common/error.h"
#include "gpu/gpu.h"
#include <inttypes.h>

struct dlx_pin {
    int32_t device_type;
    int32_t device;
    /* Any thread may release the last message of an arena. */
    _Atomic uint64_t bytes; /* pinned now */
    _Atomic uint64_t n_failures;
};

int dlx__pin_new(DLDevice device, struct dlx_pin **ret)
{
    int32_t type = (int32_t)device.device_type;
    struct dlx_pin *pin = calloc(1, sizeof *pin);
    if (!pin)
        return dlx__fail(DLX_E_NO_MEMORY, "state of pinned memory");
    int r = dlx__gpu_retain(type, device.device_id);
    if (r < 0) {
        free(pin);
        return dlx__fail_prefix(r, "cannot pin memory for device (%d, %d)", type, device.device_id);
    }
    pin->device_type = type;
    pin->device = device.device_id;
    *ret = pin;
    return 0;
}

void dlx__pin_free(struct dlx_pin *pin)
{
    if (pin)
        dlx__gpu_release(pin->device_type, pin->device);
    free(pin);
}

DLDevice dlx__pin_device(const struct dlx_pin *pin)
{
    return (DLDevice){(DLDeviceType)pin->device_type, pin->device};
}

int dlx__pin_add(struct dlx_pin *pin, const void *map, uint64_t size)
{
    int r = dlx__gpu_pin(pin->device_type, pin->device, map, size);
    if (r == 0)
        atomic_fetch_add_explicit(&pin->bytes, size, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&pin->n_failures, 1, memory_order_relaxed);
    return r;
}

bool dlx__pin_remove(struct dlx_pin *pin, const void *map, uint64_t size)
{
    bool is_gone = dlx__gpu_unpin(pin->device_type, pin->device, map) == 0;
    if (is_gone) {
        atomic_fetch_sub_explicit(&pin->bytes, size, memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&pin->n_failures, 1, memory_order_relaxed);
        dlx__error_clear();
    }
    return is_gone;
}

void dlx__pin_count(const struct dlx_pin *pin, struct dlx_subscription_stats *stats)
{
    if (!pin)
        return;
    stats->pinned_bytes = atomic_load_explicit(&pin->bytes, memory_order_relaxed);
    stats->pin_failures = atomic_load_explicit(&pin->n_failures, memory_order_relaxed);
}
