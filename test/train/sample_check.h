/* sample_check.h - reads the sample logs of all tasks of a scene and checks that, in the history
 * that survived, every step was trained once, by all lanes (micro-batches), on the expected
 * samples. train/sample_log.h explains why the lines of the logs prove it. */
#ifndef TEST_TRAIN_SAMPLE_CHECK_H
#define TEST_TRAIN_SAMPLE_CHECK_H

#include "train/troupe.h"

enum { CHECK_GENERATIONS = 64, CHECK_LANES = 32, CHECK_STEPS = 64, CHECK_LINE = 65536 };

struct sample_check {
    uint32_t lanes, n_generations;
    uint64_t generations[CHECK_GENERATIONS];             /* the numbers are not consecutive */
    char *given[CHECK_GENERATIONS][CHECK_STEPS][CHECK_LANES]; /* samples, as text; owned */
    bool done[CHECK_GENERATIONS][CHECK_STEPS];
    /* the newest generation that finished the step */
    uint64_t last[CHECK_STEPS];
};

static inline uint32_t check_generation(struct sample_check *c, uint64_t number)
{
    uint32_t i = 0;

    while (i < c->n_generations && c->generations[i] != number)
        i++;
    assert_true(i < CHECK_GENERATIONS);
    c->generations[i] = number;
    c->n_generations += i == c->n_generations;
    return i;
}

static inline void check_line(struct sample_check *c, const char *line, uint64_t *before,
                              const char *what)
{
    unsigned long long generation, step, lane; /* all generations of a scene have the same key */
    int samples_at = 0;

    if (strncmp(line, "open ", 5) == 0) {
        *before = 0;
    } else if (sscanf(line, "give %llu.%*x %llu %llu%n", &generation, &step, &lane, &samples_at) ==
               3) {
        char **place;

        assert_true(step < CHECK_STEPS && lane < c->lanes);
        place = &c->given[check_generation(c, generation)][step][lane];
        if (*place != NULL)
            fail_msg("%s: lane %llu of step %llu was computed twice in generation %llu", what, lane,
                     step, generation);
        *place = strdup(line + samples_at);
    } else if (sscanf(line, "done %llu.%*x %llu", &generation, &step) == 2) {
        assert_true(step < CHECK_STEPS);
        if (step <= *before)
            fail_msg("%s: a task applied step %llu behind step %llu", what, step,
                     (unsigned long long)*before);
        *before = step;
        c->done[check_generation(c, generation)][step] = true;
        if (generation > c->last[step])
            c->last[step] = generation;
    } else {
        fail_msg("%s: '%.60s' is no line of a sample log", what, line);
    }
}

static inline void check_file(struct sample_check *c, const char *path, const char *what)
{
    FILE *f = fopen(path, "r");
    char *line = malloc(CHECK_LINE);
    uint64_t before = 0;

    if (f == NULL)
        fail_msg("%s: no sample log '%s'", what, path);
    assert_non_null(line);
    while (fgets(line, CHECK_LINE, f) != NULL)
        if (line[strlen(line) - 1] == '\n' && strstr(line, "# torn") == NULL)
            check_line(c, line, &before, what);
    free(line);
    fclose(f);
}

static inline void sample_check_free(struct sample_check *c)
{
    if (c == NULL)
        return;
    for (uint32_t g = 0; g < CHECK_GENERATIONS; g++)
        for (uint32_t s = 0; s < CHECK_STEPS; s++)
            for (uint32_t l = 0; l < CHECK_LANES; l++)
                free(c->given[g][s][l]);
    free(c);
}

/* Checks the files <folder>/samples-<task>. `expected`: result of an undisturbed run; NULL: this
 * run is undisturbed. */
static inline struct sample_check *sample_check(const struct troupe *k, uint32_t lanes,
                                                uint64_t steps, const struct sample_check *expected,
                                                const char *what)
{
    struct sample_check *c = calloc(1, sizeof(*c));

    assert_non_null(c);
    c->lanes = lanes;
    for (uint32_t i = 0; i < k->n; i++) {
        char path[128];

        snprintf(path, sizeof(path), "%s/samples-%u", k->folder, i);
        check_file(c, path, what);
    }
    for (uint64_t s = 1; s <= steps; s++) {
        if (c->last[s] == 0)
            fail_msg("%s: nobody says that step %llu is done", what, (unsigned long long)s);
        if (c->last[s] < c->last[s - 1])
            fail_msg("%s: step %llu is of an older generation than the one before", what,
                     (unsigned long long)s);
        for (uint32_t g = 0; g < c->n_generations; g++)
            for (uint32_t l = 0; c->done[g][s] && l < lanes; l++) {
                const char *here = c->given[g][s][l];

                if (here == NULL)
                    fail_msg("%s: step %llu is done without lane %u", what, (unsigned long long)s,
                             l);
                if (expected != NULL && strcmp(here, expected->given[0][s][l]) != 0)
                    fail_msg("%s: step %llu, lane %u: other samples", what, (unsigned long long)s,
                             l);
            }
    }
    return c;
}

#endif
