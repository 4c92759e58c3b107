/* job_out.c - writes JSON text with one member per line, indented by two spaces per level. */
#include "conf/job_out.h"

#include "base/buf.h"

static void new_line(struct conf_out *o)
{
    buf_printf(o->buf, "\n%*s", 2 * o->depth, "");
}

void conf_out_key(struct conf_out *o, const char *key)
{
    if (o->depth > 0) {
        if (!o->is_empty)
            buf_str(o->buf, ",");
        new_line(o);
    }
    if (key != NULL) {
        buf_json(o->buf, key);
        buf_str(o->buf, ": ");
    }
    o->is_empty = false;
}

void conf_out_open(struct conf_out *o, const char *key, char bracket)
{
    conf_out_key(o, key);
    buf_add(o->buf, &bracket, 1);
    o->depth++;
    o->is_empty = true;
}

void conf_out_close(struct conf_out *o, char bracket)
{
    o->depth--;
    if (!o->is_empty)
        new_line(o);
    buf_add(o->buf, &bracket, 1);
    o->is_empty = false;
}
