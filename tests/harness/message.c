/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/message.h"
#include <check.h>

Dlx__Wire__Packet__BodyCase dlx_test_body_of(const void *message)
{
    const ProtobufCMessageDescriptor *packet = &dlx__wire__packet__descriptor;
    const ProtobufCMessage *base = message;
    for (unsigned i = 0; i < packet->n_fields; i++)
        if (packet->fields[i].descriptor == base->descriptor)
            return (Dlx__Wire__Packet__BodyCase)packet->fields[i].id;
    ck_abort_msg("%s is no body of a packet", base->descriptor->name);
}
