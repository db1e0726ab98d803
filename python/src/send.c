/* SPDX-License-Identifier: Apache-2.0 */
#include "send.h"
#include "errors.h"
#include <stdarg.h>

uint64_t dlxpy_publisher_number(void)
{
    static uint64_t last_number;
    return ++last_number;
}

int dlxpy_send_stream(PyObject *object, struct dlx_publish_args *args, struct dlxpy_stream *ret)
{
    if (dlxpy_stream_parse(object, ret) < 0)
        return -1;
    args->stream = dlxpy_stream_handle(ret);
    if (ret->kind != DLXPY_STREAM_ANY)
        return 0;
    PyErr_SetString(PyExc_ValueError,
                    "publish() waits for the stream that wrote the tensors, and -1 is none: leave "
                    "it out for the default stream");
    return -1;
}

struct dlx_bytes dlxpy_send_meta(const struct dlxpy_parcel *parcel)
{
    char *data = NULL;
    Py_ssize_t size = 0;
    if (parcel->meta)
        (void)PyBytes_AsStringAndSize(parcel->meta, &data, &size);
    return (struct dlx_bytes){data, (size_t)size};
}

/* ---- copies -------------------------------------------------------------------------------- */

int dlxpy_send_warn(struct dlxpy_publisher *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyObject *text = PyUnicode_FromFormatV(format, args);
    va_end(args);
    PyObject *class = text ? dlxpy_import("_errors", "CopyWarning") : NULL;
    const char *utf8 = class ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    p->has_warned = true;
    int r = utf8 ? PyErr_WarnEx(class, utf8, 1) : -1;
    Py_XDECREF(class);
    Py_XDECREF(text);
    return r;
}

int dlxpy_send_check_copies(const struct dlxpy_parcel *parcel, struct dlxpy_publisher *p,
                            bool strict)
{
    const char *topic = PyUnicode_AsUTF8AndSize(p->handle.topic, NULL);
    for (uint32_t i = 0; i < parcel->n && (strict || !p->has_warned); i++) {
        const struct dlxpy_source *s = &parcel->sources[i];
        struct dlxpy_tensor *t = (struct dlxpy_tensor *)s->object;
        if (s->own || !t || !Py_IS_TYPE(s->object, dlxpy_tensor_type) || t->publisher != p->number)
            continue;
        Py_ssize_t n_exports = dlxpy_tensor_n_exports(t), n = n_exports < 0 ? 1 : n_exports - 1;
        if (!strict)
            return dlxpy_send_warn(
                p,
                "topic %U: tensor %u is copied, since %zd array(s) made of it are still "
                "there: delete them (del) before publish(), or publish it with share=True; "
                "further copies of this publisher are not told, Report.copied says which "
                "they are",
                p->handle.topic, (unsigned)i, n);
        (void)dlxpy_raise_text(
            DLX_E_WOULD_COPY,
            "topic %.200s: tensor %u would be copied, since %zd array(s) made "
            "of it are still there, and "
            "strict=True is set: delete them first, or publish it with share=True",
            topic, i, n);
        return -1;
    }
    return 0;
}

/* ---- requests and replies ------------------------------------------------------------------ */

int dlxpy_send_begin(struct dlxpy_sending *s, struct dlxpy_publisher *p, PyObject *const value[6])
{
    s->args = (struct dlx_publish_args){.size = sizeof s->args};
    if (dlxpy_flag(value[2], &s->args.strict) < 0 || dlxpy_flag(value[3], &s->args.share) < 0 ||
        dlxpy_send_stream(value[4], &s->args, &s->stream) < 0 ||
        dlxpy_flag(value[5], &s->args.stage) < 0)
        return -1;
    const struct dlxpy_sender sender = {s->args.share ? DLXPY_SHARE : DLXPY_PASS, p->number, s,
                                        s->stream};
    dlxpy_parcel_init(&s->parcel);
    if (dlxpy_parcel_add_meta(&s->parcel, value[1]) < 0 ||
        dlxpy_parcel_pack(&s->parcel, value[0], &sender) < 0 ||
        dlxpy_send_check_copies(&s->parcel, p, s->args.strict) < 0) {
        dlxpy_parcel_unpack(&s->parcel, false);
        return -1;
    }
    s->meta = dlxpy_send_meta(&s->parcel);
    s->one = (struct dlx_item){NULL, s->parcel.is_set ? NULL : s->parcel.first.tensor};
    s->items = s->parcel.is_set ? s->parcel.items : &s->one;
    return 0;
}

void dlxpy_send_end(struct dlxpy_sending *s, bool sent)
{
    dlxpy_parcel_unpack(&s->parcel, sent && !s->args.share);
}
