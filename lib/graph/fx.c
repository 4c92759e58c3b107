/* fx.c - parses the text of an FX node. */
#include "graph/fx.h"

#include <string.h>

static const struct fx_span empty_span = { "", 0 };

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
}

static struct fx_span trim(struct fx_span s)
{
    for (; s.n > 0 && s.at[0] == ' '; s.at++)
        s.n--;
    for (; s.n > 0 && s.at[s.n - 1] == ' ';)
        s.n--;
    return s;
}

/* The text after the first occurrence of `mark`; NULL: the text does not contain it. */
static const char *after(const char *text, const char *mark)
{
    const char *p = strstr(text, mark);

    return p != NULL ? p + strlen(mark) : NULL;
}

/* torch.ops.aten.linear.default -> linear, and default */
static struct fx_span op_of(const char *target, struct fx_span *overload)
{
    const char *end = strchr(target, ']'), *first, *second;

    if (end == NULL || strncmp(target, "torch.ops.", 10) != 0)
        return empty_span;
    first = memchr(target + 10, '.', (size_t)(end - target - 10));
    if (first == NULL)
        return empty_span;
    second = memchr(first + 1, '.', (size_t)(end - first - 1));
    if (second != NULL)
        *overload = (struct fx_span){ second + 1, (size_t)(end - second - 1) };
    return (struct fx_span){ first + 1, (size_t)((second != NULL ? second : end) - first - 1) };
}

static void add_arg(struct fx *out, const char *at, const char *end)
{
    struct fx_span arg = trim((struct fx_span){ at, (size_t)(end - at) });

    if (arg.n > 0 && out->n_args < FX_MAX_ARGS)
        out->args[out->n_args++] = arg;
}

/* `at` is the first character after the opening parenthesis. */
static void split_args(const char *at, struct fx *out)
{
    const char *begin = at;
    uint32_t depth = 0;

    for (; *at != '\0'; at++) {
        if (*at == '(' || *at == '[' || *at == '{') {
            depth++;
        } else if (*at == ')' || *at == ']' || *at == '}') {
            if (depth == 0)
                break;
            depth--;
        } else if (*at == ',' && depth == 0) {
            add_arg(out, begin, at);
            begin = at + 1;
        }
    }
    add_arg(out, begin, at);
}

void fx_parse(const char *text, struct fx *out)
{
    const char *target, *args;
    size_t n;

    *out = (struct fx){
        .name = empty_span, .op = empty_span, .overload = empty_span, .all = empty_span
    };
    if (text == NULL || text[0] != '%')
        return;
    for (n = 1; is_name_char(text[n]);)
        n++;
    out->name = (struct fx_span){ text + 1, n - 1 };
    target = after(text, "target=");
    args = after(text, "args = (");
    if (target == NULL || args == NULL)
        return;
    out->op = op_of(target, &out->overload);
    out->all = (struct fx_span){ args, strlen(args) };
    split_args(args, out);
}

bool fx_is(struct fx_span s, const char *text)
{
    return strlen(text) == s.n && memcmp(s.at, text, s.n) == 0;
}

bool fx_next_name(struct fx_span text, size_t *at, struct fx_span *out)
{
    size_t begin;

    for (; *at < text.n && text.at[*at] != '%';)
        ++*at;
    if (*at >= text.n)
        return false;
    begin = ++*at;
    for (; *at < text.n && is_name_char(text.at[*at]);)
        ++*at;
    *out = (struct fx_span){ text.at + begin, *at - begin };
    return true;
}

bool fx_copy(struct fx_span s, char out[FX_MAX_NAME])
{
    if (s.n >= FX_MAX_NAME)
        return false;
    memcpy(out, s.at, s.n);
    out[s.n] = '\0';
    return true;
}

bool fx_has_stem(struct fx_span name, const char *stem)
{
    size_t n = strlen(stem), i;

    if (name.n < n || memcmp(name.at, stem, n) != 0)
        return false;
    if (name.n == n)
        return true;
    if (name.at[n] != '_' || name.n == n + 1)
        return false;
    for (i = n + 1; i < name.n; i++)
        if (name.at[i] < '0' || name.at[i] > '9')
            return false;
    return true;
}
