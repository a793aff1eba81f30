// Renders chats with Go's own text/template, given what Ollama gives its templates (template/template.go, Execute and
// collate): .System, all system messages, and .Messages, where neighbours of one role are one.
//
// Standard input: a JSON list of {"Template": …, "Messages": [{"Role": …, "Content": …}]}; standard output: a JSON list of texts.
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

type job struct {
	Template string
	Messages []message
}

func render(j job) string {
	var system []string
	var turns []*message
	for at := range j.Messages {
		m := j.Messages[at]
		if m.Role == "system" {
			system = append(system, m.Content)
		}
		if last := len(turns) - 1; last >= 0 && turns[last].Role == m.Role {
			turns[last].Content += "\n\n" + m.Content
		} else {
			turns = append(turns, &m)
		}
	}
	var text strings.Builder
	data := map[string]any{"System": strings.Join(system, "\n\n"), "Messages": turns}
	parsed := template.Must(template.New("").Option("missingkey=zero").Parse(j.Template))
	if err := parsed.Execute(&text, data); err != nil {
		panic(err)
	}
	return text.String()
}

func main() {
	var jobs []job
	if err := json.NewDecoder(os.Stdin).Decode(&jobs); err != nil {
		panic(err)
	}
	texts := make([]string, len(jobs))
	for at, j := range jobs {
		texts[at] = render(j)
	}
	if err := json.NewEncoder(os.Stdout).Encode(texts); err != nil {
		panic(err)
	}
}
