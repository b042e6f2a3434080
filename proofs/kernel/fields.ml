(* Fields of a JSON object, read strictly. Trusted, like all of this folder. *)

let malformed what = raise (Json.Malformed what)

let in_range what low high = function
  | Json.Int i when low <= i && i <= high -> i
  | _ -> malformed (Printf.sprintf "%s must be an integer in %d..%d" what low high)

let list what = function Json.List l -> l | _ -> malformed (what ^ " must be a list")

let fields what known = function
  | Json.Object l ->
    List.iter (fun (name, _) ->
      if not (List.mem name known) then malformed ("unknown field " ^ name ^ " in " ^ what)) l;
    fun name -> List.assoc_opt name l
  | _ -> malformed (what ^ " must be an object")

let required what = function Some v -> v | None -> malformed (what ^ " is missing")
