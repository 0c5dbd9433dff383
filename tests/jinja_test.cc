// The template interpreter: what Jinja gives for each construct, clear errors, and limits that no template passes.
#include "chat/jinja.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cairn::jinja {
namespace {

struct Case {
  std::string source, expected;
};

Variables MakeVariables(Heap& heap) {
  const auto text = [&](const char* trusted) { return heap.NewText(MarkedText(trusted)); };
  const auto message = [&](const char* role, const char* content) {
    return heap.NewDict({{text("role"), text(role)}, {text("content"), heap.NewText(MarkedText::Untrusted(content))}});
  };
  const auto numbers = heap.NewList({Value::Int(1), Value::Int(2), Value::Int(3)});
  const auto list =
      heap.NewList({heap.NewDict({{text("k"), Value::Int(1)}}), heap.NewDict({{text("k"), Value::Int(2)}})});
  return {{"messages",
           heap.NewList({message("system", " be good "), message("user", "hi"), message("assistant", "h\303\251llo")})},
          {"yes", Value::Bool(true)},
          {"no", Value::Bool(false)},
          {"nothing", Value::None()},
          {"number", Value::Int(7)},
          {"text", text("abc\303\251")},
          {"name", text("Ann")},
          {"nested", heap.NewDict({{text("a"), heap.NewDict({{text("b"), numbers}})}, {text("list"), list}})}};
}

MarkedText RenderMarked(const std::string& source, const Limits& limits = {}) {
  Heap heap(limits);
  const Variables variables = MakeVariables(heap);
  return Template(source, "here").Render(heap, variables, std::time_t{1700000000});
}
std::string RenderText(const std::string& source) { return RenderMarked(source).bytes; }

std::string ErrorOf(const std::string& source, const Limits& limits = {}) {
  try {
    return "no error but: " + RenderMarked(source, limits).bytes.substr(0, 100);
  } catch (const Error& error) {
    return error.what();
  }
}

// The expected texts are those of Jinja 3.1 with trim_blocks and lstrip_blocks.

TEST(Jinja, Output) {
  const Case cases[] = {
      {"{{ 'a' }}{{ 1 }}{{ 1.5 }}{{ 2.0 }}{{ true }}{{ none }}{{ missing }}|", "a11.52.0TrueNone|"},
      {"{{ [1, 'a', true, none, 2.5] }}", "[1, 'a', True, None, 2.5]"},
      {"{{ {'a': 1, 'b': [1]} }}", "{'a': 1, 'b': [1]}"},
      {"{{ ['it\\'s', \"q\\\"\", 'n\\n'] }}", "[\"it's\", 'q\"', 'n\\n']"},
      {"{{ 1e20 }} {{ 0.1 }} {{ 1_000 }}", "1e+20 0.1 1000"},
      {"{{ 'a' 'b' }}", "ab"},
      {"{{ {'a': {'b': 1}}['a'] }}", "{'b': 1}"},
      {"{{ {'a': {'b': {}}} }}", "{'a': {'b': {}}}"},
      {"{{ '\\u00e9\\x41\\t\\\\\\q' }}", "\303\251A\t\\\\q"},
      {"{{ (1, 2)[1] }}{{ (3) }}", "23"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, WhiteSpace) {
  const Case cases[] = {
      {"a\n{% if true %}\nb\n{% endif %}\nc\n", "a\nb\nc"},
      {"a\n  {% if true %}  \nb\n  {% endif %}\nc\n\n", "a\n  \nb\nc\n"},
      {"  {%+ if true %}x{% endif %}", "  x"},
      {"x {%- if true -%} \n y \n {%- endif -%} \n z", "xyz"},
      {"  {{ 1 }}\n{{ 2 }}\n3", "  1\n2\n3"},
      {"a {{- 1 -}}  b", "a1b"},
      {"a\n   {# note #}\nb", "a\nb"},
      {"a {#- note -#} b", "ab"},
      {"{% if true +%}\nx{% endif %}", "\nx"},
      {"a\r\nb\r{{ 1 }}\r\n", "a\nb\n1"},
      {"{% raw %}{{ x }}{% if %}{% endraw %}!", "{{ x }}{% if %}!"},
      {"a\n{% raw %}\n {{ x\n {%- endraw %}\n!", "a\n\n {{ x!"},
      {"a\n{% set x = 1 %}\n\n{{ x }}", "a\n\n1"},
      {"x{% if true %} {% if true %} y{% endif %} {% endif %}z", "x  y z"},
      {"\n\n{% if true %}\n  a\n{% endif %}", "\n\n  a\n"},
      {"{{ 'a' }}  {% if true %}b{% endif %}", "a  b"},
      {"   {% if true %}\n   {% endif %}\n.", "."},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Operators) {
  const Case cases[] = {
      {"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 "
       "}} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
       "7 9 3 -4 2 -2 3.5 1024 0.5 3.0 0.5"},
      {"{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"},
      {"{{ 'ab' * 3 }}{{ 2 * 'x' }}{{ [1] * 2 + [3] }}", "abababxx[1, 1, 3]"},
      {"{{ -2 ** 2 }} {{ - 3 }} {{ +4 }}", "4 -3 4"},
      {"{{ 1 < 2 < 3 }} {{ 3 > 2 >= 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ 'a' < 'b' }} {{ [1] == [1] "
       "}} {{ {'a': 1} == {'a': 1} }} {{ none == missing }}",
       "True True True True True True True True False"},
      {"{{ 'b' in 'abc' }} {{ 2 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 'x' not in 'abc' }} {{ 1 not in [1] }} {{ 'a' in "
       "('a', 'b') }} {{ 'a' in missing }}",
       "True True True True False True False"},
      {"{{ not true }} {{ not not 1 }} {{ true and 'x' }} {{ '' or 'y' }} {{ false and missing.x }} {{ not 'a' in 'b' "
       "}}",
       "False True x y False True"},
      {"{{ 'a' if yes else 'b' }}{{ 'a' if no else 'b' }}{{ 'a' if no }}|{{ 1 if no else 2 if no else 3 }}", "ab|3"},
      {"{{ 1 if missing else 2 }}", "2"},
      {"{{ yes != no }} {{ (number % 2 == 0) != yes }}", "True True"},
      {"{{ 10 - 3 - 2 }} {{ 2 * 3 % 4 }} {{ 1 - -1 }}", "5 2 2"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Access) {
  const Case cases[] = {
      {"{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].content }} {{ messages[9] }}|",
       "system system h\303\251llo |"},
      {"{{ nested.a.b[1] }} {{ nested['a']['b'][-1] }} {{ nested.x }}|", "2 3 |"},
      {"{{ messages[1:] | length }} {{ messages[:1] | length }} {{ messages[::-1][0].role }} {{ messages[5:] }} {{ "
       "messages[1:-1] | length }}",
       "2 1 assistant [] 1"},
      {"{{ text[0] }} {{ text[-1] }} {{ text[1:3] }} {{ text[::-1] }} {{ text[:-1] }} {{ text[::2] }} {{ text[10:] }}| "
       "{{ text[-100:2] }} {{ text[3:1:-1] }}",
       "a \303\251 bc \303\251cba abc ac | ab \303\251c"},
      {"{{ [1,2,3].1 }}", "2"},
      {"{{ 5[1:] }}{{ nothing[0] }}|", "|"},
      {"{{ nested.list[1].k }}{{ nested.get('x') }}{{ nested.get('x', 5) }}{{ nested.get('a').b }}", "2None5[1, 2, 3]"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Methods) {
  const Case cases[] = {
      {"[{{ '  a b '.strip() }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ "
       "'\\n\\t\\u3000a\\u00a0'.strip() }}] [{{ 'abcab'.rstrip('ba') }}]",
       "[a b] [a ] [ a] [a] [a] [abc]"},
      {"{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b  c '.split(none, 1) }} "
       "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'aaa'.rsplit('aa', 1) }} {{ 'a</think>b'.split('</think>')[-1] }} {{ "
       "''.split(',') }} {{ ''.split() }}",
       "['a', 'b', '', 'c'] ['a', 'b', 'c'] ['a', 'b,c'] ['a', 'b  c '] ['a,b', 'c'] ['a', ''] b [''] []"},
      {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ "
       "'abc'.endswith('x') }}",
       "True True True False"},
      {"{{ 'Ab \303\251'.upper() }} {{ 'Ab \303\211'.lower() }} {{ 'hello wORLD it\\'s'.title() }} {{ "
       "'heLLO'.capitalize() }} {{ '\303\251A'.capitalize() }}",
       "AB \303\211 ab \303\251 Hello World It'S Hello \303\211a"},
      {"{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '', 1) }} {{ 'ab'.replace('', '.') }} {{ ', "
       "'.join(['a', 'b']) }}",
       "a+b+c ab-c .a.b. a, b"},
      {"{{ 'abc\303\251b'.find('b') }} {{ '\303\251b'.find('b') }} {{ 'a'.find('x') }} {{ 'abab'.count('ab') }} {{ "
       "'a\\nb\\r\\nc\\n'.splitlines() }} {{ '12'.isdigit() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ "
       "'x.md'.removesuffix('.md') }}",
       "1 1 -1 2 ['a', 'b', 'c'] True x x"},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.keys() | list }}{{ {'a': "
       "1}.values() | list }}",
       "a=1;b=2;['a'][1]"},
      {"{{ [1, 2, 1].count(1) }}{{ [1, 2].index(2) }}", "21"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Filters) {
  const Case cases[] = {
      {"[{{ '  a ' | trim }}] {{ 'ab' | upper }} {{ 'AB' | lower }} {{ [1,2] | length }} {{ text | length }} {{ 'a b' "
       "| title }} {{ 'ab c' | capitalize }}",
       "[a] AB ab 2 4 A B Ab c"},
      {"{{ [1, 2, 3] | join(', ') }} {{ ['a', 'b'] | join }} {{ messages | join('|', attribute='role') }} {{ [1,2] | "
       "first }} {{ [1,2] | last }} {{ 'abc' | list }} {{ 'abc' | first }} {{ [] | first }}|",
       "1, 2, 3 ab system|user|assistant 1 2 ['a', 'b', 'c'] a |"},
      {"{{ missing | default('x') }} {{ none | default('x') }} {{ '' | default('x', true) }} {{ missing | d }}| {{ 0 | "
       "default(3, boolean=true) }}",
       "x None x | 3"},
      {"{{ '12' | int + 1 }} {{ 'x' | int }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 5 | string ~ 'a' }} {{ 'a' | "
       "string }} {{ ' 7 ' | int }} {{ -3 | abs }} {{ 'x' | int(4) }}",
       "13 0 3 2.5 5a a 7 3 4"},
      {"{{ {'a': 1, 'b': [true, none, '\303\251\"\\n']} | tojson }}",
       "{\"a\": 1, \"b\": [true, null, \"\303\251\\\"\\n\"]}"},
      {"{{ {'a': 1, 'b': [1, {}], 'c': []} | tojson(indent=2) }}",
       "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    {}\n  ],\n  \"c\": []\n}"},
      {"{{ [1, {'x': 'y'}] | tojson(indent=4) }}", "[\n    1,\n    {\n        \"x\": \"y\"\n    }\n]"},
      {"{{ 'a\\\\b\\t' | tojson }} {{ 1.0 | tojson }} {{ 3 | tojson }}", "\"a\\\\b\\t\" 1.0 3"},
      {"{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}", "['hi']"},
      {"{{ messages | rejectattr('role', 'eq', 'system') | list | length }}", "2"},
      {"{{ messages | selectattr('content') | list | length }}", "3"},
      {"{{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1] | reject | list }} {{ ['a', 'b'] | map('upper') | list }} "
       "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 1, 2] | unique | list }} {{ [1,2] | reverse "
       "| list }} {{ 'abc' | reverse }}",
       "[1, 3] [0] ['A', 'B'] [1, 2, 3] [3, 2, 1] [1, 2] [2, 1] cba"},
      {"{{ 'a-b' | replace('-', '+') }} {% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {% for "
       "k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}",
       "a+b a2b1 a1"},
      {"{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}", "a\n    b\n\n    c|  a\n  b"},
      {"{{ ('a' ~ 'b') | upper ~ 'c' }}{{ 'x' | upper | lower }}", "ABcx"},
      {"{{ messages | map(attribute='missing', default='-') | join(',') }}", "-,-,-"},
      {"{{ nested.list | map(attribute='k') | list }}", "[1, 2]"},
      {"{{ \"it's <a-b (\303\251lan\" | title }} {{ \"it's <a-b (\303\251lan\".title() }} {{ true | abs }}",
       "It's <A-B (\303\211lan It'S <A-B (\303\211lan 1"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Tests) {
  const Case cases[] = {
      {"{{ missing is defined }} {{ name is defined }} {{ missing is undefined }} {{ nothing is none }} {{ name is not "
       "none }} {{ name is string }} {{ nested is mapping }} {{ messages is mapping }} {{ messages is iterable }} {{ 1 "
       "is number }} {{ 1.5 is number }} {{ yes is true }} {{ no is false }} {{ 1 is true }} {{ messages is sequence "
       "}} {{ text is iterable }} {{ 5 is iterable }}",
       "False True True True True True True False True True True True True False True True False"},
      {"{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is "
       "float }} {{ true is boolean }} {{ 'a' is in ['a'] }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 'a' is lower }} {{ 'A' "
       "is upper }} {{ 2 is ne 2 }} {{ range is callable }}",
       "True True True True False True True True True True True True False True"},
      {"{{ messages[0].x is defined }} {{ not missing is defined }} {{ missing is defined and missing }} {{ 1 if name "
       "is defined else 2 }} {{ name is defined or no }}",
       "False True False 1 True"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, Statements) {
  const Case cases[] = {
      {"{% if no %}a{% elif yes %}b{% else %}c{% endif %}{% if no %}a{% elif no %}b{% else %}c{% endif %}{% if no "
       "%}a{% endif %}",
       "bc"},
      {"{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ "
       "loop.revindex }}{{ loop.revindex0 }} {{ m.role }};{% endfor %}",
       "10TrueFalse332 system;21FalseFalse321 user;32FalseTrue310 assistant;"},
      {"{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ m.role }}>{{ "
       "loop.nextitem.role if not loop.last else '-' }};{% endfor %}",
       "->system>user;system>user>assistant;user>assistant>-;"},
      {"{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}{{ m.role }}{% endfor %}",
       "1/2user2/2assistant"},
      {"{% for x in [] %}a{% else %}none{% endfor %}", "none"},
      {"{% for x in missing %}a{% endfor %}.", "."},
      {"{% for c in 'a\303\251' %}<{{ c }}>{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}", "<a><\303\251>a"},
      {"{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "231"},
      {"{% set ns = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ "
       "ns.y }}{% set ns.z = 5 %}{{ ns.z }}{{ ns.w is defined }}",
       "4a5False"},
      {"{% if yes %}{% set v = 3 %}{% endif %}{{ v }}", "3"},
      {"{% set block %}a{{ 1 }}b{% endset %}[{{ block }}]", "[a1b]"},
      {"{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% "
       "endfor %}",
       "02"},
      {"{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{{ range(0) | list }}",
       "[0, 1, 2][1, 2, 3][5, 3, 1][]"},
      {"{% for i in range(2) %}{% for j in range(2) %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }};{% "
       "endfor %}",
       "11211;11212;"},
      {"{% macro m(a, b='x') %}({{ a }}{{ b }}){% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
       "(1x)(12)(43)(x)"},
      {"{% set g = 'G' %}{% macro m() %}{{ g }}{{ missing }}{% endmacro %}{% for g in [1] %}{{ m() }}{% endfor %}",
       "G"},
      {"{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "321"},
      {"{% set a = dict(x=1) %}{{ a.x }}{{ a }}", "1{'x': 1}"},
      {"{% set m = messages[0].content | trim + '!' %}{{ m }}", "be good!"},
      {"{% for i in [1,2,3] %}{{ i }}{{ ', ' if not loop.last }}{% endfor %}", "1, 2, 3"},
  };
  for (const Case& one : cases) EXPECT_EQ(RenderText(one.source), one.expected) << one.source;
}

TEST(Jinja, GenerationTagsAreIgnored) { EXPECT_EQ(RenderText("a{% generation %}b{%- endgeneration %}c"), "abc"); }

TEST(Jinja, Time) {
  EXPECT_EQ(RenderText("{{ strftime_now('%Y') }}{{ strftime_now('') }}{{ strftime_now is defined }}"), "2023True");
  EXPECT_NE(ErrorOf("{{ strftime_now('%Q') }}").find("%Q"), std::string::npos);
  EXPECT_NE(ErrorOf("{{ strftime_now('%') }}").find("format"), std::string::npos);
}

TEST(Jinja, ErrorsNameTheLine) {
  const Case cases[] = {
      {"a\n{% unless x %}", "'here', line 2 of the chat template: {% unless %} is not known here"},
      {"\n\n{{ 1 | frobnicate }}", "line 3 of the chat template: the filter 'frobnicate' is not known"},
      {"{{ 1 is odd_looking }}", "the test 'odd_looking' is not known"},
      {"{{ missing.x }}", "'missing' is undefined"},
      {"{{ missing.x.y() }}", "'missing' is undefined"},
      {"{{ frob(1) }}", "the function 'frob' is not known"},
      {"{{ 'a'.frob() }}", "no method frob()"},
      {"{{ 1 + 'a' }}", "'+' cannot be applied"},
      {"{{ missing + 'a' }}", "'missing', which is undefined"},
      {"{% if true %}\n\n", "line 2 of the chat template: {% endif %} was expected"},
      {"{% for x in messages %}", "{% endfor %} was expected"},
      {"{% endif %}", "{% endif %} is not known here"},
      {"{{ 'a }}", "a text does not end"},
      {"{{ 1", "does not end with }}"},
      {"{# 1", "does not end"},
      {"{{ (1 }}", "'}' closes nothing"},
      {"{{ 1 ! }}", "'!' has no meaning"},
      {"{{ }}", "a value was expected"},
      {"{% set x.y = 1 %}", "'x' is no namespace"},
      {"{% break %}", "outside of a loop"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "too large a number"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"{% for a, b in [[1, 2, 3]] %}{% endfor %}", "3 parts"},
      {"{% include 'x' %}", "{% include %} is not known here"},
      {"{{ raise_exception('No ' ~ 'way') }}", "'here': the chat template refuses these messages: No way"},
      {"{{ messages < 1 }}", "cannot be ordered"},
      {"{{ [1][::0] }}", "step of a cut is 0"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "takes 1 arguments"},
  };
  for (const Case& one : cases) {
    const std::string error = ErrorOf(one.source);
    EXPECT_NE(error.find(one.expected), std::string::npos) << one.source << " gives: " << error;
  }
}

TEST(Jinja, NoTemplateRunsForEver) {
  const std::string long_loop = "{% for i in range(1000) %}{% for j in range(1000) %}{% for k in range(1000) %}{{ k }}";
  const std::string sources[] = {
      long_loop + "{% endfor %}{% endfor %}{% endfor %}",
      "{{ range(10000000000) | list | length }}",
      "{{ 'aaaaaaaaaa' * 1000000000000 }}",
      "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
      "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns.x.x.x | tojson }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{% for i in [1, 2] %}{{ f(n) }}{% endfor %}{% endmacro %}{{ f(1) }}",
      "{% set x = 'a' * 1000000 %}{% for i in range(10000) %}{% if x ~ 'b' in x ~ i %}{% endif %}{% endfor %}",
      "{% set x = 'a' * 30000000 %}{% set y = 'a' * 300000 ~ 'b' %}{% for i in range(100000) %}{{ y in x }}{% endfor "
      "%}",
  };
  Limits limits;
  limits.steps = 300000;
  limits.memory = size_t{64} << 20;
  for (const std::string& source : sources) {
    EXPECT_EQ(ErrorOf(source, limits).find("'here'"), 0u) << source << ErrorOf(source, limits);
  }
}

TEST(Jinja, DeepNestingIsRefused) {
  for (const size_t depth : {50000u, 300u}) {
    const auto repeat = [&](const std::string& text) {
      std::string result;
      for (size_t i = 0; i < depth; ++i) result += text;
      return result;
    };
    const std::string sources[] = {"{{ " + repeat("(") + "1" + repeat(")") + " }}",
                                   "{{ " + repeat("[") + "1" + repeat("]") + " }}",
                                   "{{ " + repeat("{1:") + "1" + repeat("}") + " }}",
                                   "{{ " + repeat("not ") + "1 }}",
                                   "{{ " + repeat("- ") + "1 }}",
                                   "{{ 1" + repeat(" + 1") + " }}",
                                   "{{ x" + repeat(".x") + " }}",
                                   "{{ x" + repeat("[0]") + " }}",
                                   "{{ x" + repeat("|upper") + " }}",
                                   "{{ x" + repeat(" is defined") + " }}",
                                   "{{ 1" + repeat(" if 1 else 1") + " }}",
                                   "{{ 1" + repeat(" and 1") + " }}",
                                   repeat("{% if 1 %}") + repeat("{% endif %}"),
                                   repeat("{% for i in [1] %}") + repeat("{% endfor %}"),
                                   repeat("{% set x %}") + repeat("{% endset %}")};
    for (const std::string& source : sources) {
      EXPECT_NE(ErrorOf(source).find("nested"), std::string::npos) << source.substr(0, 30) << ErrorOf(source);
    }
  }
  // Many in a row are no nesting.
  std::string flat = "{% if no %}";
  for (int i = 0; i < 2000; ++i) flat += "{% elif no %}";
  EXPECT_EQ(RenderText(flat + "{% endif %}{{ 1 }}"), "1");
}

// Each byte of the output that came from a message is marked, shown here as _.
TEST(Jinja, RemembersWhatCameFromMessages) {
  const Case cases[] = {
      {"a{{ messages[1].content }}b{{ messages[1].role }}", "a__buser"},
      {"{{ '<' + messages[1]['content'] ~ '>' }}", "<__>"},
      {"{{ messages[0].content | trim }}.{{ messages[0].content.strip() }}", "_______._______"},
      {"{{ messages[0].content.split(' ') | join('+') }}", "+__+____+"},
      {"{{ messages[1].content | upper }}{{ messages[2].content | upper }}", "________"},
      {"{{ messages[1].content | tojson }}{{ [messages[1].content] }}", "\"__\"['__']"},
      {"{{ messages[1].content | replace('i', 'o') }}{{ 'xix' | replace('i', messages[1].content) }}", "_ox__x"},
      {"{% for c in messages[1].content %}{{ c }},{% endfor %}{{ messages[1].content[::-1] }}", "_,_,__"},
      {"{% set x %}a{{ messages[1].content }}{% endset %}{{ x }}", "a__"},
      {"{% macro m(t) %}[{{ t }}]{% endmacro %}{{ m(messages[1].content) }}", "[__]"},
      {"{% set ns = namespace(t='') %}{% for m in messages[1:2] %}{% set ns.t = ns.t + m.content * 2 %}{% endfor %}{{ "
       "ns.t }}",
       "____"},
      {"{{ messages | map(attribute='content') | map('trim') | join('|') }}", "_______|__|______"},
      {"{{ messages[0].content | default('x') }}{{ messages[1].content if messages[1].content == 'hi' else 'no' }}",
       "___________"},
  };
  for (const Case& one : cases) {
    const MarkedText result = RenderMarked(one.source);
    std::string shown;
    for (size_t i = 0; i < result.size(); ++i) shown += result.untrusted(i) ? '_' : result.bytes[i];
    EXPECT_EQ(shown, one.expected) << one.source;
  }
}

}  // namespace
}  // namespace cairn::jinja
