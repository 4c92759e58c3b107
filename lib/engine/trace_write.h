/* trace_write.h - writes the file of a trace, and computes the sums. */
#ifndef ENGINE_TRACE_WRITE_H
#define ENGINE_TRACE_WRITE_H

struct err;
struct trace;

/* Opens the file, or creates it. Errors: ERR_INPUT. */
int trace_open_file(const char *path, int *fd, struct err *err);
/* Checks that a trace can be written to this path; NULL is allowed. Leaves no new file. Any thread.
 * Errors: ERR_INPUT. */
int trace_check_path(const char *path, struct err *err);
/* Writes the file and calls on_done. Called by the trace's thread when no row changes any more. */
void trace_write(struct trace *t);

#endif
