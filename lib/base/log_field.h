/* log_field.h - the value of a field as JSON text. Pure; any thread. */
#ifndef BASE_LOG_FIELD_H
#define BASE_LOG_FIELD_H

struct buf;
struct log_field;

/* Appends the value. A string that is NULL becomes null. */
void log_field_json(struct buf *b, const struct log_field *f);

#endif
