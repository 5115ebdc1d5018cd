// SPDX-License-Identifier: Apache-2.0
//
// keyfold generate, in its parts: the command line and what one prompt prints (generate.c), a model that is open and
// answers (generate_session.c), the chat on a terminal (generate_chat.c), and logits for other programs
// (generate_logits.c).
#ifndef KF_TOOLS_GENERATE_H
#define KF_TOOLS_GENERATE_H

#include "keyfold.h"
#include "model/llama.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

typedef struct generate_options {
    const char *model, *prompt, *system; // prompt NULL: from a pipe, or a chat; system NULL: the model's own
    const char *ids, *logits;            // the prompt as token ids; the file that its logits go to
    int64_t max_tokens, context, chunk, threads;
    kfm_sampling sampling;
    kf_device device;
    kf_dtype cache, rows, weights; // of rows and weights: 0 bits: the model's own
    int32_t activations;
    bool chat, json, ignore_end;
} generate_options;

typedef enum generate_stop { STOP_END = 0, STOP_LENGTH, STOP_CONTEXT, STOP_INTERRUPT } generate_stop;

typedef struct generate_session {
    generate_options options;
    kf_context *context;
    kfm_gguf *gguf;
    kfm_tokenizer *tokenizer;
    kfm_llama *model;
    kfm_sampler *sampler;
    float *logits;
    kfm_ids pending; // tokens that the model has not seen yet
    kfm_ids ids;     // the answer's tokens
    char *text;      // the answer, whole UTF-8 characters
    size_t text_bytes, text_room;
    generate_stop stop;
    // Measured, over all answers.
    int64_t prefill_tokens, decode_tokens, decode_positions; // positions: keys read, summed over the decoded tokens
    double prefill_seconds, decode_seconds;
} generate_session;

// Opens everything; on failure error says why, and close is still to be called.
bool generate_open(generate_session *s, const generate_options *options, kfm_error *error);
void generate_close(generate_session *s);

// Lets the model read `pending` and answer, up to its end, max_tokens, the context's end or Ctrl-C; where `stream`,
// whole characters go to stdout at once. False after an error; a full context is one unless something has been
// answered.
bool generate_answer(generate_session *s, bool stream, kfm_error *error);

// Statistics of what was measured so far. read: bytes a second that the machine's threads can read; 0 where it was not
// measured.
typedef struct generate_statistics {
    double prefill_rate, decode_rate, bytes_per_token, bytes_per_s, read;
} generate_statistics;
generate_statistics generate_measure(const generate_session *s);
void generate_print_statistics(const generate_session *s, const generate_statistics *statistics);

// Ctrl-C sets a flag instead of ending the program, once: a second one ends it.
void generate_catch_interrupt(void);
bool generate_interrupted(void);

// What stdin holds to its end, terminated; NULL after an error.
char *generate_read_all(size_t *bytes);

int generate_chat(generate_session *s);

// "504,3575,282" to ids.
bool generate_parse_ids(const char *text, kfm_ids *ids, kfm_error *error);
// Lets the model read `pending` and writes every token's logits to the file of options.logits.
bool generate_logits(generate_session *s, kfm_error *error);

#endif
