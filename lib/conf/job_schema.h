/* job_schema.h - prints the JSON Schema of a job file. */
#ifndef CONF_JOB_SCHEMA_H
#define CONF_JOB_SCHEMA_H

struct buf;

/* Appends the JSON Schema (draft 2020-12) that follows from the table of keys. Sets out->failed if
 * memory runs out. */
void conf_schema(struct buf *out);

#endif
