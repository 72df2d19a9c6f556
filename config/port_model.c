/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the setting soft.model. Start-up only; any thread. */
#include "config/port_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/hooks.h"

#define WORD_BYTES 64 /* bytes of the longest word, with the terminating zero */
#define READS_MAX 16
#define RATE_GBPS_MAX 100000

struct unit {
	const char *name;
	double factor;
};

static const struct unit counts[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {0}};
static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {0}};
static const struct unit long_times[] = {{"ms", 1}, {"s", 1e3}, {0}};
static const struct unit rates[] = {{"G", 1}, {0}};

static const struct word {
	const char *name;         /* "": a word without "name=" */
	const char *form;         /* how to write it, for error messages */
	const struct unit *units; /* NULL: the word has no value; its member is a bool */
	uint32_t min, max;        /* of the value in the unit with factor 1 */
	size_t offset;            /* of the uint32_t in struct port_model */
} words[] = {
#define WORD(name, form, units, min, max, field)                                                   \
	{                                                                                          \
		name, form, units, min, max, offsetof(struct port_model, field)                    \
	}
	WORD("", "400G (1G to 100000G)", rates, 1, RATE_GBPS_MAX, rate_gbps),
	WORD("rtt", "rtt=5us (0ns to 1s)", times, 0, 1000000000, rtt_ns),
	WORD("reads", "reads=16 (1 to 16)", counts, 1, READS_MAX, reads_per_qp),
	WORD("qp_rate", "qp_rate=2.5M (0 to 1000M)", counts, 0, 1000000000, qp_messages_per_s),
	WORD("port_rate", "port_rate=100M (0 to 1000M)", counts, 0, 1000000000, messages_per_s),
	WORD("mtu", "mtu=4096 (256, 512, 1024, 2048 or 4096)", counts, 256, 4096, mtu),
	WORD("header", "header=82 (0 to 4096 bytes)", counts, 0, 4096, header_bytes),
	WORD("register", "register=0ms (0ms to 10000s for one GiB)", long_times, 0, 10000000,
		register_ms_per_gib),
#ifdef TEST_HOOKS
	WORD("doorbell", "doorbell=80ns (0ns to 100us)", times, 0, 100000, doorbell_ns),
	WORD("line", "line=30ns (0ns to 100us)", times, 0, 100000, line_ns),
	WORD("far", "far=1 (0 to 4G)", counts, 0, UINT32_MAX, far_ports),
	WORD("still", "still", NULL, 0, 0, still),
#endif
#undef WORD
};

#define WORDS (sizeof(words) / sizeof(words[0]))

/*
 * Parses a number with a unit. Returns false if it is malformed, out of range, or not a whole
 * number of the smallest unit.
 */
static bool parse_value(const struct word *word, const char *text, uint32_t *ret)
{
	size_t digits = strspn(text, "0123456789.");
	char number[WORD_BYTES];
	double value;
	char *end;

	if (digits == 0 || digits >= sizeof(number))
		return false;
	memcpy(number, text, digits);
	number[digits] = '\0';
	value = strtod(number, &end);
	if (*end)
		return false;
	for (const struct unit *unit = word->units; unit->name; unit++)
		if (!strcmp(text + digits, unit->name)) {
			value *= unit->factor;
			if (value < word->min || value > word->max ||
				value != (double)(uint32_t)value)
				return false;
			*ret = (uint32_t)value;
			return true;
		}
	return false;
}

/* The word that begins like `text`: by its name, or the rate, which has none. */
static const struct word *find_word(const char *text)
{
	size_t length = strcspn(text, "=");
	bool valued = text[length] == '=';

	for (size_t i = 0; i < WORDS; i++) {
		const char *name = words[i].name;

		if (name[0] ? !!words[i].units == valued && strlen(name) == length &&
					!memcmp(name, text, length)
			    : !valued && *text >= '0' && *text <= '9')
			return &words[i];
	}
	return NULL;
}

/* Parses one word. `given`: bit i: words[i] was there before. */
static int parse_word(
	const char *text, struct port_model *model, uint32_t *given, char *why, size_t why_bytes)
{
	const struct word *word = find_word(text);
	uint32_t value, bit;

	if (!word) {
		snprintf(why, why_bytes,
			"\"%s\": unknown; give 400G, rtt, reads, qp_rate, port_rate, mtu, header or register%s",
			text,
			TEST_HOOK(true) ? "" : " (words for measurements: " NO_TEST_HOOKS ")");
		return -EINVAL;
	}
	bit = 1u << (word - words);
	if (!word->units) {
		*(bool *)((char *)model + word->offset) = true;
	} else if (!parse_value(
			   word, word->name[0] ? text + strlen(word->name) + 1 : text, &value) ||
		   (word->offset == offsetof(struct port_model, mtu) && value & (value - 1))) {
		snprintf(why, why_bytes, "\"%s\": not accepted; write it as %s", text, word->form);
		return -EINVAL;
	} else {
		memcpy((char *)model + word->offset, &value, sizeof(value));
	}
	if (*given & bit) {
		snprintf(why, why_bytes, "\"%s\": given twice; remove one of the two", text);
		return -EINVAL;
	}
	*given |= bit;
	return 0;
}

int port_model_parse(const char *text, struct port_model *ret, char *why, size_t why_bytes)
{
	struct port_model model = {.rtt_ns = 5000,
		.reads_per_qp = READS_MAX,
		.qp_messages_per_s = 2500000,
		.messages_per_s = 100000000,
		.mtu = 4096,
		.header_bytes = 82};
	uint32_t given = 0;

	while (*text) {
		size_t length = strcspn(text, ",");
		char word[WORD_BYTES];

		if (length == 0 || length >= sizeof(word) || (text[length] && !text[length + 1])) {
			snprintf(why, why_bytes, "\"%.80s\": an empty or too long word", text);
			return -EINVAL;
		}
		memcpy(word, text, length);
		word[length] = '\0';
		if (parse_word(word, &model, &given, why, why_bytes) < 0)
			return -EINVAL;
		text += length + (text[length] == ',');
	}
	if (!model.rate_gbps && given & ~(1u << (find_word("register=") - words))) {
		snprintf(why, why_bytes,
			"a model without a rate; begin with one, such as 400G (only register=... works without)");
		return -EINVAL;
	}
	*ret = model;
	return 0;
}
