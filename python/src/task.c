/* SPDX-License-Identifier: Apache-2.0 */

/* Messages that a worker of a group takes: dlx/queue.h. */

#include "errors.h"
#include "message.h"

static struct dlxpy_message *cast(PyObject *self)
{
    return (struct dlxpy_message *)self;
}

/* Ends the claim of the message, or begins its lease anew. */
static PyObject *tell(PyObject *self, int (*call)(struct dlx_message *), bool settles)
{
    struct dlx_message *m = dlxpy_message_of(self);
    int r = m ? call(m) : 0;
    if (!m || r < 0)
        return m ? dlxpy_raise(r) : NULL;
    cast(self)->is_settled |= settles;
    Py_RETURN_NONE;
}

const char dlxpy_task_done_doc[] =
    "done($self, /)\n"
    "--\n"
    "\n"
    "Says that the message is done: no worker of the group gets it again. The message and\n"
    "its tensors stay valid. Work that was only queued on a GPU is not done yet.\n"
    "\n"
    "Raises dlx.NotFound (the message is not this worker's any more: it was given back,\n"
    "or its lease ended, and another worker may do it again), dlx.InvalidError (the\n"
    "subscription is in no group).";
PyObject *dlxpy_task_done(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, dlx_message_done, true);
}

const char dlxpy_task_give_back_doc[] =
    "give_back($self, /)\n"
    "--\n"
    "\n"
    "Gives the message back: a worker of the group takes it again. So do release(), and the\n"
    "end of a message that is not done and of all that was made of it. The message and its\n"
    "tensors stay valid.\n"
    "Raises dlx.NotFound (it was done or given back, or its lease ended),\n"
    "dlx.InvalidError (the subscription is in no group).";
PyObject *dlxpy_task_give_back(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, dlx_message_give_back, true);
}

const char dlxpy_task_renew_doc[] = "renew($self, /)\n"
                                    "--\n"
                                    "\n"
                                    "Begins the lease of the message anew. Raises as give_back().";
PyObject *dlxpy_task_renew(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, dlx_message_renew, false);
}

PyObject *dlxpy_task_attempt(PyObject *self, void *closure)
{
    (void)closure;
    const struct dlx_message *m = dlxpy_message_of(self);
    return m ? PyLong_FromUnsignedLong(dlx_message_attempt(m)) : NULL;
}

int dlxpy_task_leave(PyObject *self, bool has_failed)
{
    struct dlx_message *m = cast(self)->m;
    if (!m || cast(self)->is_settled || dlx_message_attempt(m) == 0)
        return 0;
    if (has_failed) {
        (void)dlx_message_give_back(m); /* if it fails, another worker has it already */
        return 0;
    }
    int r = dlx_message_done(m);
    if (r < 0)
        (void)dlxpy_raise(r);
    return r < 0 ? -1 : 0;
}
