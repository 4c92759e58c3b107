/* ctl_recipe.c - `trainerctl recipe`: prints the script that exports a network of a framework. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "daemon/ctl.h"
#include "daemon/recipes.h"

enum { RECIPES_MAX = 32 };

/* The first line of a script states the framework and the versions it was tested with. */
static void print_versions(const struct recipe *r, FILE *out)
{
    const char *text = (const char *)r->text, *end = memchr(text, '\n', *r->bytes);
    size_t n = end != NULL ? (size_t)(end - text) : *r->bytes;
    const char *stop = memmem(text, n, ". Save", strlen(". Save"));

    if (stop != NULL)
        n = (size_t)(stop - text);
    while (n > 0 && (*text == '#' || *text == ' ')) {
        text++;
        n--;
    }
    fprintf(out, "  %-12s %.*s\n", r->name, (int)n, text);
}

static int help(FILE *out)
{
    fprintf(out,
            "usage: trainerctl recipe NAME\n\n"
            "Prints a Python script that exports a network so that it trains as its framework trains it. Each\n"
            "script is run as printed when the test networks are generated:\n\n");
    for (size_t i = 0; i < n_recipes; i++)
        print_versions(&recipes[i], out);
    fprintf(out, "\nFor example: trainerctl recipe torch >export.py\n");
    return out == stdout ? CTL_OK : CTL_USAGE;
}

int ctl_recipe(int argc, char **argv)
{
    const char *names[RECIPES_MAX], *near;
    size_t n = 0;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return help(stdout);
    if (argc != 2)
        return help(stderr);
    for (size_t i = 0; i < n_recipes; i++) {
        if (strcmp(recipes[i].name, argv[1]) == 0) {
            fwrite(recipes[i].text, 1, *recipes[i].bytes, stdout);
            return fflush(stdout) == 0 && !ferror(stdout) ? CTL_OK : CTL_FAILED;
        }
        if (n < RECIPES_MAX)
            names[n++] = recipes[i].name;
    }
    near = text_nearest(argv[1], names, n);
    fprintf(stderr, "trainerctl: there is no recipe '%s'", argv[1]);
    fprintf(stderr, near != NULL ? "; did you mean %s?\n" : "; --help lists them\n", near);
    return CTL_USAGE;
}
