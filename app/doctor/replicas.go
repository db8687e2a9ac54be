package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// Members lists the live members of the directory: replicas, whose data is their version.
type Members func(ctx context.Context) ([]coord.MemberInfo, error)

// Replicas looks at who runs, and in which version.
func Replicas(members Members, own string) Check {
	return Check{Name: "replicas", Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		list, err := members(ctx)
		if err != nil {
			return Finding{}, err
		}
		return judgeReplicas(list, own), nil
	}}
}

func judgeReplicas(members []coord.MemberInfo, own string) Finding {
	if len(members) == 0 {
		return fine("none runs")
	}
	names, versions := map[string]int{}, map[string]int{}
	var each, twice []string
	for _, m := range members {
		version := string(m.Data)
		names[m.Name]++
		versions[version]++
		each = append(each, fmt.Sprintf("%s %s since %s", m.Name, version, m.Since.UTC().Format(time.RFC3339)))
		if names[m.Name] == 2 {
			twice = append(twice, m.Name)
		}
	}
	what := fmt.Sprintf("%d (%s)", len(members), strings.Join(each, ", "))
	if versions[own] == 0 {
		what += ", and this program is " + own
	}
	list := []Finding{fine("%s", what)}
	if len(versions) > 1 {
		list = append(list, warning("end the update, or take it back", "they are of %d versions", len(versions)))
	}
	if len(twice) > 0 {
		slices.Sort(twice)
		const advice = "give each replica a TANDEM_NODE of its own; one that was killed is listed for half a minute"
		list = append(list, warning(advice, "several are called %s", strings.Join(twice, ", ")))
	}
	return together(Finding{}, list...)
}

// Leaders looks at who leads.
func Leaders(leaders func(ctx context.Context) ([]coord.Leadership, error)) Check {
	return Check{Name: "leaders", Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		list, err := leaders(ctx)
		if err != nil {
			return Finding{}, err
		}
		return judgeLeaders(list), nil
	}}
}

func judgeLeaders(leaders []coord.Leadership) Finding {
	var each []string
	for _, l := range leaders {
		each = append(each, fmt.Sprintf("%s leads %s in term %d since %s, until %s unless extended",
			l.Candidate, l.Name, l.Epoch, l.Since.UTC().Format(time.RFC3339), l.Until.UTC().Format(time.RFC3339)))
	}
	if len(each) == 0 {
		return fine("nobody leads")
	}
	return fine("%s", strings.Join(each, "; "))
}
