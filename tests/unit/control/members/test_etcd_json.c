/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to etcd and its answers: the texts of a real etcd 3.4, answers of other shapes, and
 * answers with random changes. One thread. SEED=n repeats the random test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/control/members/etcd_inner.h"

static const struct etcd_keys keys = {
	.start = "/peercache/default/", .own = "/peercache/default/b", .value = "10.0.0.2:31998"};

/* Keys a, b and c with the values 10.0.0.1:31998, 10.0.0.2:31998 and 10.0.0.3. */
static const char list_text[] =
	"{\"header\":{\"cluster_id\":\"14841639068965178418\",\"revision\":\"5\"},\"kvs\":["
	"{\"key\":\"L3BlZXJjYWNoZS9kZWZhdWx0L2E=\",\"lease\":\"11\",\"value\":"
	"\"MTAuMC4wLjE6MzE5OTg=\"},"
	"{\"key\":\"L3BlZXJjYWNoZS9kZWZhdWx0L2I=\",\"value\":\"MTAuMC4wLjI6MzE5OTg=\"},"
	"{\"key\":\"L3BlZXJjYWNoZS9kZWZhdWx0L2M=\",\"value\":\"MTAuMC4wLjM=\"}],"
	"\"more\":true,\"count\":\"9\"}";

static struct json_object *parsed(const char *text)
{
	return etcd_parse(text, strlen(text));
}

static void a_list_has_the_addresses_of_the_others(void **state)
{
	struct json_object *answer = parsed(list_text);
	static struct etcd_list list;

	assert_non_null(answer);
	assert_null(etcd_error(answer));
	etcd_list(answer, &keys, 7, &list);
	assert_int_equal(list.count, 2);
	assert_string_equal(list.address[0].host, "10.0.0.1");
	assert_int_equal(list.address[0].port, 31998);
	assert_string_equal(list.address[1].host, "10.0.0.3");
	assert_int_equal(list.address[1].port, 7);
	assert_true(list.own && list.more);
	assert_int_equal(list.bad, 0);
	json_object_put(answer);
}

static void requests_are_what_etcd_expects(void **state)
{
	char *text;

	text = etcd_ask_list(&keys);
	assert_string_equal(text,
		"{\"key\":\"L3BlZXJjYWNoZS9kZWZhdWx0Lw==\",\"range_end\":"
		"\"L3BlZXJjYWNoZS9kZWZhdWx0MA==\",\"limit\":1024,\"serializable\":true}");
	free(text);
	text = etcd_ask_lease(4611686018427387903, 60);
	assert_string_equal(text, "{\"ID\":4611686018427387903,\"TTL\":60}");
	free(text);
	text = etcd_ask_lease(3, 0);
	assert_string_equal(text, "{\"ID\":3}");
	free(text);
	text = etcd_ask_token("a\"b", "c\\d");
	assert_string_equal(text, "{\"name\":\"a\\\"b\",\"password\":\"c\\\\d\"}");
	free(text);
	text = etcd_ask_put(&keys, 5);
	assert_string_equal(text,
		"{\"key\":\"L3BlZXJjYWNoZS9kZWZhdWx0L2I=\",\"value\":\"MTAuMC4wLjI6MzE5OTg=\","
		"\"lease\":5}");
	free(text);
}

static void leases_tokens_and_errors_are_found(void **state)
{
	struct json_object *answer = parsed("{\"result\":{\"ID\":\"3\",\"TTL\":\"60\"}}\n");
	char *token;

	assert_int_equal(etcd_lease_seconds(answer), 60);
	json_object_put(answer);
	answer = parsed("{\"result\":{\"ID\":\"3\"}}");
	assert_int_equal(etcd_lease_seconds(answer), 0);
	json_object_put(answer);
	answer = parsed("{\"error\":\"etcdserver: user name is empty\",\"code\":3}");
	assert_string_equal(etcd_error(answer), "etcdserver: user name is empty");
	json_object_put(answer);
	answer = parsed("{\"error\":{\"grpc_code\":5,\"message\":\"not found\"}}");
	assert_string_equal(etcd_error(answer), "not found");
	json_object_put(answer);
	answer = parsed("{\"token\":\"abc.9\"}");
	token = etcd_token(answer);
	assert_string_equal(token, "abc.9");
	free(token);
	json_object_put(answer);
	/* it would add a header of its own to the next request */
	answer = parsed("{\"token\":\"abc\\r\\nHost: x\"}");
	assert_null(etcd_token(answer));
	json_object_put(answer);
}

static void other_shapes_are_answers_without_content(void **state)
{
	static const char *const shapes[] = {"", "x", "[]", "7", "\"kvs\"", "{", "{}",
		"{\"kvs\":7}", "{\"kvs\":[7,[],null,{},{\"key\":7,\"value\":{}}],\"more\":\"yes\"}",
		"{\"kvs\":{\"key\":\"x\"},\"result\":7,\"error\":7,\"token\":7}",
		"{\"result\":{\"TTL\":60}}", "{\"result\":{\"TTL\":\"x\"}}",
		"{\"kvs\":[[[[[[[[[[[[]]]]]]]]]]]]}"};

	assert_null(etcd_error(NULL));
	assert_null(etcd_token(NULL));
	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct json_object *answer = parsed(shapes[i]);
		static struct etcd_list list;

		etcd_list(answer, &keys, 7, &list);
		assert_int_equal(list.count, 0);
		assert_false(list.own || list.more);
		assert_int_equal(etcd_lease_seconds(answer), 0);
		assert_null(etcd_error(answer));
		assert_null(etcd_token(answer));
		json_object_put(answer);
	}
}

/* More keys than were requested: the list keeps its bound. */
static void a_list_that_is_too_long_is_cut(void **state)
{
	char *text = calloc(1, 1200 * 64), *end = text;
	struct json_object *answer;
	static struct etcd_list list;

	end += sprintf(end, "{\"kvs\":[");
	for (unsigned i = 0; i < 1100; i++)
		end += sprintf(
			end, "%s{\"key\":\"eA==\",\"value\":\"MTAuMC4wLjM=\"}", i ? "," : "");
	sprintf(end, "]}");
	answer = parsed(text);
	etcd_list(answer, &keys, 7, &list);
	assert_int_equal(list.count, ETCD_LIST_MAX);
	json_object_put(answer);
	free(text);
}

static void random_changes_do_no_harm(void **state)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL), objects = 0;
	char text[sizeof(list_text)];

	srandom(seed);
	print_message("SEED=%u\n", seed);
	for (unsigned i = 0; i < 20000; i++) {
		struct json_object *answer;
		static struct etcd_list list;

		memcpy(text, list_text, sizeof(text));
		for (long flips = 1 + random() % 3; flips; flips--)
			text[(size_t)random() % (sizeof(text) - 1)] = (char)random();
		answer = etcd_parse(text, sizeof(text) - 1 - (size_t)random() % 4);
		objects += answer != NULL;
		etcd_list(answer, &keys, 7, &list);
		assert_true(list.count <= 3);
		free(etcd_token(answer));
		(void)etcd_error(answer);
		(void)etcd_lease_seconds(answer);
		json_object_put(answer);
	}
	assert_true(objects > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_list_has_the_addresses_of_the_others),
		cmocka_unit_test(requests_are_what_etcd_expects),
		cmocka_unit_test(leases_tokens_and_errors_are_found),
		cmocka_unit_test(other_shapes_are_answers_without_content),
		cmocka_unit_test(a_list_that_is_too_long_is_cut),
		cmocka_unit_test(random_changes_do_no_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
