// SPDX-License-Identifier: Apache-2.0
//
// keyfold generate --logits: the logits of every token of a prompt as float32 [tokens, vocabulary] in a file, for whoever holds
// another implementation against this one (scripts/compare_logits.py does).
#include <stdlib.h>

#include "generate.h"
#include "tool.h"

bool generate_parse_ids(const char *text, kfm_ids *ids, kfm_error *error) {
    for (const char *at = text;; at++) {
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || id < 0 || id > INT32_MAX)
            return kfm_fail(
                error, "--ids: \"%s\" does not begin with a token id; numbers with commas between them are expected",
                at);
        if (!kfm_ids_push(ids, (int32_t)id, error)) return false;
        if (*end == '\0') return true;
        at = end;
    }
}

static bool write_floats(const char *path, const float *values, size_t count, kfm_error *error) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) return kfm_fail(error, "%s cannot be written", path);
    bool whole = fwrite(values, sizeof *values, count, file) == count;
    // What stood in the buffer is written here, and may fail here.
    if (fclose(file) != 0) whole = false;
    return whole || kfm_fail(error, "%s could not be written to its end", path);
}

bool generate_logits(generate_session *s, kfm_error *error) {
    int64_t tokens = s->pending.count;
    if (tokens == 0) return kfm_fail(error, "the prompt has no tokens");
    size_t row = (size_t)kfm_llama_get_info(s->model).vocabulary;
    float *logits =
        (size_t)tokens <= SIZE_MAX / sizeof *logits / row ? malloc((size_t)tokens * row * sizeof *logits) : NULL;
    if (logits == NULL) return kfm_fail(error, "out of memory for the logits of %lld tokens", (long long)tokens);
    bool ok = kfm_llama_eval_all(s->model, s->pending.id, tokens, logits, error) &&
              write_floats(s->options.logits, logits, (size_t)tokens * row, error);
    free(logits);
    return ok;
}
