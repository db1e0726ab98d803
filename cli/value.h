/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_VALUE_H
#define CLI_VALUE_H

/** Single values of packed tensors, as text and as JSON. */

#include <dlpack/dlpack.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VALUE_TEXT_SIZE 80

/**
 * Small binary floating point formats as DLPack names them.
 * `bits` are the raw bits. Returns false when `code` is not such a format.
 */
bool value_minifloat(uint8_t code, uint32_t bits, double *ret);

/** IEEE 754 half precision. */
double value_half(uint16_t bits);

/**
 * Value `index` of packed data, counted in lanes. A type without a name is written as the hex
 * digits of its bytes in memory order.
 */
void value_text(DLDataType dtype, const void *data, uint64_t index, char text[VALUE_TEXT_SIZE]);

/** Value `index` as a number: 0 or 1 of a boolean, the magnitude of a complex one. Returns false
 *  for a type without a name. */
bool value_number(DLDataType dtype, const void *data, uint64_t index, double *ret);

/**
 * Value `index` as JSON: numbers; true and false; a pair for complex; the strings "nan", "inf" and
 * "-inf" for what JSON has no numbers for; hex digits for a type without a name. NULL: out of
 * memory.
 */
json_t *value_json(DLDataType dtype, const void *data, uint64_t index);

#endif
