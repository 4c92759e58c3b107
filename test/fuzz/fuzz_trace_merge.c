/* fuzz_trace_merge.c - any bytes as the trace of a task: they are refused with a text, or the events
 * that are added are the lines of the input, in their order. The parts of the input do not matter. */
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "daemon/trace_merge.h"
#include "fuzz/driver.h"

#define BEGIN "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
#define NAME "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":7,\"tid\":0,\"args\":{\"name\":\"worker 7\"}}"
#define SPAN "{\"ph\":\"X\",\"name\":\"a\",\"cat\":\"b\",\"pid\":7,\"tid\":1,\"ts\":12.345,\"dur\":3.500,\"args\":{\"step\":4}}"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x05" BEGIN NAME ",\n" SPAN "\n]}\n"),
    FUZZ_SEED("\x40" BEGIN SPAN ",\n" SPAN ",\n" SPAN "\n]}\n"),
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

static int merge(const char *text, size_t n, size_t part, struct buf *out, struct err *err)
{
    struct trace_merge m = { .pid = 3, .shift_ns = 1000 };
    int rc = 0, end;

    for (size_t at = 0; rc == 0 && at < n; at += part)
        rc = trace_merge_add(&m, text + at, n - at < part ? n - at : part, out, err);
    end = trace_merge_end(&m, rc < 0 ? NULL : err);
    return rc < 0 ? rc : end;
}

static size_t count(const char *s, size_t n, char c)
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++)
        found += s[i] == c;
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = { 0 }, parts = { 0 };
    struct err err = { 0 };
    const char *text = (const char *)data + 1;
    int rc;

    if (n < 2)
        return 0;
    rc = merge(text, n - 1, n - 1, &whole, &err);
    CHECK(rc == 0 || (rc == ERR_INPUT && err.text[0] != '\0'));
    CHECK(merge(text, n - 1, data[0] % 64u + 1, &parts, &err) == rc);
    CHECK(!whole.failed && !parts.failed);
    CHECK(rc < 0 || (whole.len == parts.len && memcmp(whole.data, parts.data, whole.len) == 0));
    /* All but the first and the last line are events, each after its own newline. */
    CHECK(rc < 0 || count(whole.data, whole.len, '\n') + 2 == count(text, n - 1, '\n'));
    buf_fini(&whole);
    buf_fini(&parts);
    return 0;
}
