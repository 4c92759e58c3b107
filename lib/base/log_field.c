#include "base/log_field.h"

#include <inttypes.h>

#include "base/buf.h"
#include "base/log.h"

void log_field_json(struct buf *b, const struct log_field *f)
{
    switch (f->type) {
    case LOG_F_STR:
        if (f->as.str != NULL)
            buf_json(b, f->as.str);
        else
            buf_str(b, "null");
        break;
    case LOG_F_JSON:
        buf_str(b, f->as.str != NULL ? f->as.str : "null");
        break;
    case LOG_F_I64:
        buf_printf(b, "%" PRId64, f->as.i64);
        break;
    case LOG_F_U64:
        buf_printf(b, "%" PRIu64, f->as.u64);
        break;
    case LOG_F_F64:
        buf_f64(b, f->as.f64);
        break;
    case LOG_F_F32:
        buf_f32(b, f->as.f32);
        break;
    case LOG_F_BOOL:
        buf_str(b, f->as.boolean ? "true" : "false");
        break;
    }
}
