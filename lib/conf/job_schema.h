/* job_schema.h - JSON Schema of a job file. */
#ifndef CONF_JOB_SCHEMA_H
#define CONF_JOB_SCHEMA_H

struct buf;

/* JSON Schema (draft 2020-12) of a job file, from the table of keys. */
void conf_schema(struct buf *out);

#endif
