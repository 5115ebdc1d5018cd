// SPDX-License-Identifier: Apache-2.0
// The tokeniser: merges against a textbook loop on a small vocabulary, every text back from its tokens, bytes that are
// no UTF-8, special tokens, ChatML, streams of whole characters, broken vocabularies; and, where KEYFOLD_MODEL names
// the model file, what another implementation gives (tests/data/smollm2.json).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "gguf_writer.h"
#include "json.h"
#include "small_vocabulary.h"
#include "model/tokenizer.h"

static void write_vocabulary(gguf_writer *w, const vocabulary *v) {
    gguf_begin(w);
    put_vocabulary(w, v);
    gguf_end(w);
}

static kfm_tokenizer *open_vocabulary(const vocabulary *v, kfm_error *error) {
    gguf_writer w;
    kfm_gguf *g;
    kfm_tokenizer *t;
    write_vocabulary(&w, v);
    if (!kfm_gguf_parse(&g, w.bytes, w.count, error)) fail_msg("%s", error->text);
    kfm_tokenizer_open(&t, g, error);
    kfm_gguf_close(g);
    gguf_free(&w); // the tokeniser keeps nothing of the file
    return t;
}

static kfm_tokenizer *open_right(void) {
    kfm_error error = {""};
    kfm_tokenizer *t = open_vocabulary(&right_vocabulary, &error);
    if (t == NULL) fail_msg("%s", error.text);
    return t;
}

// Appends the bytes of ids to text, which has room for them; returns their number.
static size_t decode(const kfm_tokenizer *t, const kfm_ids *ids, char *text) {
    size_t n = 0;
    for (int64_t i = 0; i < ids->count; i++) {
        kfm_string s = kfm_token_bytes(t, ids->id[i]);
        memcpy(text + n, s.bytes, s.length);
        n += s.length;
    }
    return n;
}

static void expect_ids(const kfm_tokenizer *t, const char *text, bool special, const int32_t *expected, int64_t count) {
    kfm_error error;
    kfm_ids ids = {0};
    assert_true(kfm_encode(t, text, strlen(text), special, &ids, &error));
    assert_int_equal(ids.count, count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(ids.id[i], expected[i]);
    kfm_ids_free(&ids);
}

static int32_t merged(const char *text) {
    for (int i = 0; i < MERGES; i++)
        if (strlen(merges[i][0]) + strlen(merges[i][1]) == strlen(text) &&
            strncmp(text, merges[i][0], strlen(merges[i][0])) == 0 &&
            strcmp(text + strlen(merges[i][0]), merges[i][1]) == 0)
            return FIRST_MERGED + i;
    return -1;
}

static void splits_into_words(void **state) {
    (void)state;
    kfm_tokenizer *t = open_right();
    // "12" has a merge, and digits stand alone; 's is a word; a space goes with the word that follows, the last of
    // several too, but not with a digit.
    expect_ids(t, "12", false, (int32_t[]){FIRST_BYTE + '1', FIRST_BYTE + '2'}, 2);
    expect_ids(t, "a's", false, (int32_t[]){FIRST_BYTE + 'a', merged("'s")}, 2);
    expect_ids(t, "  ax", false, (int32_t[]){FIRST_BYTE + ' ', merged(" a"), FIRST_BYTE + 'x'}, 3);
    expect_ids(t, "a\n\n1", false, (int32_t[]){FIRST_BYTE + 'a', merged("\n\n"), FIRST_BYTE + '1'}, 3);
    expect_ids(t, "a\n\n\nb", false, (int32_t[]){FIRST_BYTE + 'a', merged("\n\n"), FIRST_BYTE + '\n', FIRST_BYTE + 'b'},
               4);
    expect_ids(t, "\xc3\xa9", false, (int32_t[]){merged("\xc3\xa9")}, 1);
    expect_ids(t, "", false, NULL, 0);
    kfm_tokenizer_close(t);
}

// The textbook's loop over one word: join the leftmost of the pairs with the lowest rank, until none is left.
static int textbook(const kfm_tokenizer *t, const char *word, int n, int32_t *out) {
    for (int i = 0; i < n; i++) out[i] = FIRST_BYTE + (unsigned char)word[i];
    for (;;) {
        int best = MERGES, at = -1;
        for (int i = 0; i + 1 < n; i++) {
            kfm_string left = kfm_token_bytes(t, out[i]), right_part = kfm_token_bytes(t, out[i + 1]);
            for (int m = 0; m < best; m++)
                if (kfm_string_is(left, merges[m][0]) && kfm_string_is(right_part, merges[m][1])) best = m, at = i;
        }
        if (at < 0) return n;
        out[at] = FIRST_MERGED + best;
        memmove(out + at + 1, out + at + 2, (size_t)(n - at - 2) * sizeof *out);
        n--;
    }
}

static void merges_as_the_textbook(void **state) {
    (void)state;
    kfm_tokenizer *t = open_right();
    kfm_error error;
    uint32_t random = 1;
    for (int trial = 0; trial < 20000; trial++) {
        char word[40];
        int32_t expected[40];
        int n = 1 + trial % 39;
        for (int i = 0; i < n; i++) {
            random = random * 1664525 + 1013904223; // Numerical Recipes
            word[i] = "aabbccx"[(random >> 16) % 7];
        }
        kfm_ids ids = {0};
        assert_true(kfm_encode(t, word, (size_t)n, false, &ids, &error));
        int count = textbook(t, word, n, expected);
        assert_int_equal(ids.count, count);
        assert_memory_equal(ids.id, expected, (size_t)count * sizeof *expected);
        kfm_ids_free(&ids);
    }
    kfm_tokenizer_close(t);
}

static void gives_every_text_back(void **state) {
    (void)state;
    kfm_tokenizer *t = open_right();
    kfm_error error;
    uint32_t random = 7;
    char text[300], back[300];
    for (int trial = 0; trial < 3000; trial++) {
        size_t n = (size_t)(trial % 300);
        for (size_t i = 0; i < n; i++) {
            random = random * 1664525 + 1013904223;
            // Thirds of the trials: any bytes, ASCII, and mostly pieces of multi-byte characters.
            text[i] = (char)(trial % 3 == 0   ? random >> 24
                             : trial % 3 == 1 ? random >> 25
                                              : (unsigned char)"\xf0\x9f\x98\x80\xc3\xa9 a"[(random >> 20) % 8]);
        }
        kfm_ids ids = {0};
        assert_true(kfm_encode(t, text, n, trial % 2 == 0, &ids, &error));
        assert_int_equal(ids.left_out, 0);
        assert_int_equal(decode(t, &ids, back), n);
        assert_memory_equal(back, text, n);
        kfm_ids_free(&ids);
    }
    kfm_tokenizer_close(t);
}

static void leaves_out_bytes_without_token(void **state) {
    (void)state;
    vocabulary v = right_vocabulary;
    v.without_byte = 'b';
    v.bad_merge = NULL;
    kfm_error error = {""};
    // A merge of "a b" names a token that is not there: the file is refused.
    assert_null(open_vocabulary(&v, &error));
    assert_non_null(strstr(error.text, "merge 0, 'a b', has a part or a result that is no token"));
    v.without_byte = 'z';
    kfm_tokenizer *t = open_vocabulary(&v, &error);
    assert_non_null(t);
    kfm_ids ids = {0};
    assert_true(kfm_encode(t, "azzaz", 5, false, &ids, &error));
    assert_int_equal(ids.left_out, 3);
    assert_int_equal(ids.count, 2); // the two a's are no neighbours
    kfm_ids_free(&ids);
    kfm_tokenizer_close(t);
}

static void recognises_special_tokens(void **state) {
    (void)state;
    kfm_tokenizer *t = open_right();
    const int32_t a = FIRST_BYTE + 'a';
    kfm_error error;
    expect_ids(t, "a<|im_end|>a<|endoftext|>", true, (int32_t[]){a, IM_END, a, END_OF_TEXT}, 4);
    expect_ids(t, "<|im_end|><|im_start|>", true, (int32_t[]){IM_END, IM_START}, 2);
    expect_ids(t, "a<tool>a", false, (int32_t[]){a, USER_DEFINED, a}, 3);
    kfm_ids ids = {0};
    assert_true(kfm_encode(t, "<|im_end|>", 10, false, &ids, &error)); // plain text: its characters
    assert_int_equal(ids.count, 10);
    for (int64_t i = 0; i < ids.count; i++) assert_true(ids.id[i] >= FIRST_BYTE);
    kfm_ids_free(&ids);
    assert_true(kfm_encode(t, "<|im_end|", 9, true, &ids, &error)); // cut short
    assert_int_equal(ids.count, 9);
    kfm_ids_free(&ids);
    assert_true(kfm_tokenizer_is_end(t, IM_END) && kfm_tokenizer_is_end(t, END_OF_TEXT) &&
                !kfm_tokenizer_is_end(t, IM_START) && !kfm_tokenizer_is_end(t, -1));
    assert_true(kfm_token_is_control(t, IM_START) && !kfm_token_is_control(t, USER_DEFINED) &&
                !kfm_token_is_control(t, 1 << 30));
    assert_int_equal(kfm_tokenizer_find(t, "<|im_end|>"), IM_END);
    assert_int_equal(kfm_tokenizer_find(t, "none"), -1);
    assert_int_equal(kfm_tokenizer_bos(t), -1);
    assert_int_equal(kfm_token_bytes(t, FIRST_MERGED + MERGES).length, 0);
    kfm_tokenizer_close(t);
}

static void writes_chatml(void **state) {
    (void)state;
    kfm_tokenizer *t = open_right();
    kfm_error error;
    kfm_ids ids = {0};
    char text[200] = {0};
    assert_string_equal(kfm_chat_default_system(t), "Be brief.");
    assert_true(kfm_chat_check(t, &error));
    assert_true(kfm_chat_message(t, "user", "Hi <|im_end|>", 13, &ids, &error));
    assert_true(kfm_chat_answer(t, &ids, &error));
    decode(t, &ids, text);
    assert_string_equal(text, "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
    int ends = 0;
    for (int64_t i = 0; i < ids.count; i++) ends += ids.id[i] == IM_END;
    assert_int_equal(ends, 1); // the one in the message is text
    ids.count = 0;
    // Role and content are one text: of the three newlines two are one word.
    assert_true(kfm_chat_message(t, "r", "\n\nHey", 5, &ids, &error));
    assert_int_equal(ids.id[0], IM_START);
    assert_int_equal(ids.id[1], FIRST_BYTE + 'r');
    assert_int_equal(ids.id[2], merged("\n\n"));
    assert_int_equal(ids.id[3], FIRST_BYTE + '\n');
    kfm_ids_free(&ids);
    kfm_tokenizer_close(t);

    vocabulary v = right_vocabulary;
    v.chat_template = "{{ '[INST]' + message }}";
    t = open_vocabulary(&v, &error);
    assert_non_null(t);
    assert_false(kfm_chat_check(t, &error));
    assert_false(kfm_chat_message(t, "user", "x", 1, &ids, &error));
    assert_string_equal(error.text, "the model's chat template is not ChatML, the one that keyfold writes");
    assert_null(kfm_chat_default_system(t));
    kfm_tokenizer_close(t);
    v.chat_template = "{{ '<|im_start|>system\\n' + text + '<|im_end|>' }}"; // not literal
    t = open_vocabulary(&v, &error);
    assert_non_null(t);
    assert_true(kfm_chat_check(t, &error));
    assert_null(kfm_chat_default_system(t));
    kfm_tokenizer_close(t);
}

static void streams_whole_characters(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"na\xc3\xafve \xf0\x9f\x98\x80!", "na\xc3\xafve \xf0\x9f\x98\x80!"},
        {"\x80", "\xef\xbf\xbd"},
        {"\xc3(", "\xef\xbf\xbd("},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
        {"\xf0\x9f\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, // a surrogate
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                 // overlong
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].in);
        for (size_t piece = 1; piece <= n; piece++) { // in pieces of every size
            kfm_utf8 stream = {0};
            char out[KFM_UTF8_ROOM(64)] = {0};
            size_t written = 0;
            for (size_t at = 0; at < n; at += piece) {
                size_t take = n - at < piece ? n - at : piece;
                size_t got = kfm_utf8_push(&stream, cases[i].in + at, take, out + written);
                for (size_t k = 0; k < got;) { // each push gives whole characters
                    int length = kfm_utf8_length(out + written + k, got - k);
                    assert_true(length > 0);
                    k += (size_t)length;
                }
                written += got;
            }
            written += kfm_utf8_finish(&stream, out + written);
            out[written] = '\0';
            assert_string_equal(out, cases[i].out);
        }
    }
}

static void refuses_broken_vocabularies(void **state) {
    (void)state;
    vocabulary v[9];
    for (int i = 0; i < 9; i++) v[i] = right_vocabulary;
    const char *says[] = {"tokenizer model 'llama' is not supported",
                          "tokenizer pattern 'qwen2' is not supported",
                          "merge 15, 'ab', is not two tokens",
                          "merge 15, 'q q', has a part or a result that is no token",
                          "has 5 elements for 275 tokens",
                          "token 0 has the type -1",
                          "'tokenizer.ggml.eos_token_id' is 275; 0 to 274 are allowed",
                          "'tokenizer.ggml.eos_token_id' is 4294967295",
                          "'tokenizer.ggml.model' is missing"};
    v[0].model = "llama";
    v[1].pre = "qwen2";
    v[2].bad_merge = "ab";
    v[3].bad_merge = "q q";
    v[4].types = 5;
    v[5].odd_type = UINT32_MAX;
    v[6].eos = FIRST_MERGED + MERGES;
    v[7].eos = UINT32_MAX; // CVE-2025-52566: a signed and an unsigned idea of an id
    v[8].model = NULL;
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        kfm_error error = {""};
        assert_null(open_vocabulary(&v[i], &error));
        if (strstr(error.text, says[i]) == NULL) fail_msg("\"%s\" does not say \"%s\"", error.text, says[i]);
    }
}

static void survives_every_allocation_failing(void **state) {
    (void)state;
    gguf_writer w;
    kfm_gguf *g;
    kfm_tokenizer *t;
    kfm_error error;
    write_vocabulary(&w, &right_vocabulary);
    assert_true(kfm_gguf_parse(&g, w.bytes, w.count, &error));
    for (int64_t n = 1;; n++) {
        kfm_fail_allocation(n);
        bool ok = kfm_tokenizer_open(&t, g, &error);
        bool reached = kfm_fail_allocation(0) == 0;
        assert_true(ok == !reached && (t != NULL) == ok);
        if (ok) break;
    }
    for (int64_t n = 1;; n++) {
        kfm_ids ids = {0};
        kfm_fail_allocation(n);
        bool ok =
            kfm_chat_message(t, "user", "Hello abcabc <tool>", 19, &ids, &error) && kfm_chat_answer(t, &ids, &error);
        bool reached = kfm_fail_allocation(0) == 0;
        assert_true(ok == !reached);
        kfm_ids_free(&ids);
        if (ok) break;
    }
    kfm_tokenizer_close(t);
    kfm_tokenizer_close(NULL);
    kfm_gguf_close(g);
    gguf_free(&w);
}

// ---- against another implementation ----

static kfm_tokenizer *open_model(void) {
    const char *path = getenv("KEYFOLD_MODEL");
    if (path == NULL) {
        print_message("KEYFOLD_MODEL is not set: the model's vocabulary is not tried\n");
        skip();
    }
    kfm_gguf *g;
    kfm_tokenizer *t = NULL;
    kfm_error error;
    if (!kfm_gguf_open(&g, path, &error) || !kfm_tokenizer_open(&t, g, &error)) fail_msg("%s", error.text);
    kfm_gguf_close(g);
    return t;
}

static void expect_json_ids(const kfm_tokenizer *t, const char *text, bool special, const json *expected) {
    kfm_ids ids = {0};
    kfm_error error;
    assert_true(kfm_encode(t, text, strlen(text), special, &ids, &error));
    assert_int_equal(ids.count, expected->count);
    for (size_t i = 0; i < expected->count; i++) assert_int_equal(ids.id[i], (int32_t)expected->items[i].number);
    kfm_ids_free(&ids);
}

static void agrees_with_another_implementation(void **state) {
    (void)state;
    kfm_tokenizer *t = open_model();
    json data = json_read_file(KF_SOURCE_DIR "/tests/data/smollm2.json");
    const json *list = json_get(&data, "tokenize");
    assert_true(list->count >= 7);
    for (size_t i = 0; i < list->count; i++) {
        const char *text = json_get(&list->items[i], "text")->text;
        expect_json_ids(t, text, true, json_get(&list->items[i], "ids_special"));
        expect_json_ids(t, text, false, json_get(&list->items[i], "ids_plain"));
    }
    list = json_get(&data, "generate");
    for (size_t i = 0; i < list->count; i++) {
        expect_json_ids(t, json_get(&list->items[i], "prompt")->text, true, json_get(&list->items[i], "prompt_ids"));
        const json *run = json_get(&list->items[i], "float32"), *gen = json_get(run, "gen_ids");
        kfm_ids ids = {0};
        kfm_error error;
        char text[2000] = {0};
        for (size_t k = 0; k < gen->count; k++) assert_true(kfm_ids_push(&ids, (int32_t)gen->items[k].number, &error));
        decode(t, &ids, text);
        assert_string_equal(text, json_get(run, "text")->text);
        kfm_ids_free(&ids);
    }
    json_free(&data);
    assert_string_equal(kfm_chat_default_system(t),
                        "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    kfm_tokenizer_close(t);
}

// A word of n bytes costs n log n: a megabyte without a space, which would take hours in n².
static void encodes_long_words_fast(void **state) {
    (void)state;
    kfm_tokenizer *t = open_model();
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES), *back = malloc(BYTES);
    assert_true(text != NULL && back != NULL);
    kfm_error error;
    for (int kind = 0; kind < 3; kind++) {
        uint32_t random = 3;
        for (int i = 0; i < BYTES; i++) {
            random = random * 1664525 + 1013904223;
            text[i] = kind == 0 ? 'a' : kind == 1 ? ' ' : (char)('a' + (random >> 16) % 26);
        }
        kfm_ids ids = {0};
        clock_t start = clock();
        assert_true(kfm_encode(t, text, BYTES, false, &ids, &error));
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        assert_int_equal(decode(t, &ids, back), BYTES);
        assert_memory_equal(text, back, BYTES);
        assert_true(seconds < 30);
        kfm_ids_free(&ids);
    }
    free(text);
    free(back);
    kfm_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_into_words),
        cmocka_unit_test(merges_as_the_textbook),
        cmocka_unit_test(gives_every_text_back),
        cmocka_unit_test(leaves_out_bytes_without_token),
        cmocka_unit_test(recognises_special_tokens),
        cmocka_unit_test(writes_chatml),
        cmocka_unit_test(streams_whole_characters),
        cmocka_unit_test(refuses_broken_vocabularies),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(agrees_with_another_implementation),
        cmocka_unit_test(encodes_long_words_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
