/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_PIN_H
#define DLX_GPU_PIN_H

/*
 * Arenas of the CPU that a subscription has pinned for copies to a GPU (dlx_subscribe_args.pin).
 * Every mapping of an arena is registered with the driver when it is made, and unregistered before
 * it is unmapped. An arena that the driver refuses is read as without this. Messages outlive their
 * subscription, and their arenas stay registered.
 */

#include <dlx/dlx.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct dlx_pin;

/* Retains the device. Returns 0; DLX_E_DEVICE (no such device, driver or backend), DLX_E_NO_MEMORY,
 * DLX_E_FORKED, and what else the driver says. */
int dlx__pin_new(DLDevice device, struct dlx_pin **ret);
/* NULL is fine. Any thread. */
void dlx__pin_free(struct dlx_pin *pin);

/* The GPU that it is pinned for. */
DLDevice dlx__pin_device(const struct dlx_pin *pin);

/* A mapping was made. Returns 0, or the driver's refusal, which is counted. */
int dlx__pin_add(struct dlx_pin *pin, const void *map, uint64_t size);
/* It is about to be unmapped; any thread. False: it may not be, since the driver would take what is
 * mapped there next for this one. It stays until the process ends, and counts as a failure. */
bool dlx__pin_remove(struct dlx_pin *pin, const void *map, uint64_t size);

/* NULL: nothing is pinned. */
void dlx__pin_count(const struct dlx_pin *pin, struct dlx_subscription_stats *stats);

#endif
